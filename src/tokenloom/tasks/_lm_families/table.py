"""Which model is of which kind."""

from __future__ import annotations

from tokenloom.errors import UserError
from tokenloom.tasks._lm_families.base import ModelFamily
from tokenloom.tasks._lm_families.gpt import GPTFamily
from tokenloom.tasks._lm_families.ngram import NgramFamily
from tokenloom.tasks._lm_families.recurrent import RecurrentFamily

MODEL_FAMILIES: tuple[ModelFamily, ...] = (GPTFamily(), NgramFamily(), RecurrentFamily())
MODELS = {name: what for kind in MODEL_FAMILIES for name, what in kind.models.items()}


def family_of(model: str) -> ModelFamily:
    """The kind of a model by its name."""
    return next(kind for kind in MODEL_FAMILIES if model in kind.models)


def refuse_idle(settings: object, model: str) -> None:
    """Raise UserError for a setting that was given and has no effect on this model."""
    for name in sorted(frozenset[str]().union(*(kind.takes for kind in MODEL_FAMILIES)) - family_of(model).takes):
        value = getattr(settings, name)
        if value != type(settings).__dataclass_fields__[name].default:  # type: ignore[attr-defined]
            raise UserError(f"--{name.replace('_', '-')} {value} has no effect with --model {model}: leave it out")
