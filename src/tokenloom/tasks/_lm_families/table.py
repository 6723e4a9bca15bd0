"""Which model is of which kind."""

from __future__ import annotations

from tokenloom.errors import UserError
from tokenloom.tasks._lm_families.base import Kind
from tokenloom.tasks._lm_families.ngram import CountingKind
from tokenloom.tasks._lm_families.gpt import GPTKind
from tokenloom.tasks._lm_families.recurrent import RecurrentKind

KINDS: tuple[Kind, ...] = (GPTKind(), CountingKind(), RecurrentKind())
MODELS = {name: what for kind in KINDS for name, what in kind.models.items()}


def kind_of(model: str) -> Kind:
    """The kind of a model by its name."""
    return next(kind for kind in KINDS if model in kind.models)


def refuse_idle(settings: object, model: str) -> None:
    """Raise UserError for a setting that was given and has no effect on this model."""
    for name in sorted(frozenset[str]().union(*(kind.takes for kind in KINDS)) - kind_of(model).takes):
        value = getattr(settings, name)
        if value != type(settings).__dataclass_fields__[name].default:  # type: ignore[attr-defined]
            raise UserError(f"--{name.replace('_', '-')} {value} has no effect with --model {model}: leave it out")
