"""What text generation asks of a family of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.modules import device_of
from tokenloom.tasks._text_generation_settings import TextGenerationSettings
from tokenloom.training.losses import LossTerm, cross_entropy_term

CHUNK = 1024


@dataclass(frozen=True)
class ResolvedSizes:
    """The sizes of a model: what `build` needs, and the settings that were derived on the way. note: what to say."""

    config: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""


class ModelFamily(ABC):
    """A family of models that predict the next token.

    models: by name, a line on each. takes: the settings that have an effect on it, beside those of all families.
    counted: whether it is counted instead of trained.
    """

    models: ClassVar[Mapping[str, str]]
    takes: ClassVar[frozenset[str]]
    shown: ClassVar[tuple[str, ...]]
    counted: ClassVar[bool] = False

    @abstractmethod
    def check(self, settings: TextGenerationSettings) -> None:
        """Raise UserError for settings that cannot be, before any data are read."""

    @abstractmethod
    def settle(self, settings: TextGenerationSettings, tokens: int, vocab_size: int) -> ResolvedSizes:
        """Decide every size that was not given, from the settings and the amount of text."""

    @abstractmethod
    def build(self, config: dict[str, Any], seed: int) -> nn.Module:
        """A model from what `settle` gave."""

    def count(self, config: dict[str, Any], ids: NDArray[Any], border: int | None) -> nn.Module:
        """A model counted on a run of ids; what it settles goes into the config."""
        raise NotImplementedError

    def recipe(self, settings: TextGenerationSettings) -> dict[str, Any]:
        """Training settings that suit the model."""
        return {}

    def lead(self, config: dict[str, Any]) -> int:
        """How many tokens before a window of training the model wants to read."""
        return 0

    def largest(self, config: dict[str, Any]) -> int | None:
        """The longest window that the model can read, or None where there is no limit."""
        return None

    def term(self, model: nn.Module, batch: Batch) -> LossTerm:
        """The loss of the next token."""
        return cross_entropy_term(model(batch), batch.targets["loss"])

    def running(self, model: nn.Module, ids: NDArray[np.int64]) -> Tensor:
        """(N − 1,) nats of every token of a run but the first, with as much context as the model can use.

        Here: fed chunk by chunk, with the state carried from each to the next.
        """
        steps: Any = model
        tokens = torch.from_numpy(ids)[None].to(device_of(model))
        state, nats = steps.init_state(1), []
        for first in range(0, len(ids) - 1, CHUNK):
            targets = tokens[0, first + 1 : first + 1 + CHUNK]
            logs, state = steps.step(tokens[:, first : first + len(targets)], state)
            nats.append(-logs[0].gather(1, targets[:, None])[:, 0].double().cpu())
        return torch.cat(nats)


def fitted_context(settings: TextGenerationSettings, wanted: int, tokens: int) -> tuple[int, str]:
    """The context that a text of so many tokens allows, and what there is to say about it.

    Raises UserError where the context was asked for and the text is too short.
    """
    longest = max(1, tokens // 4)
    if wanted <= longest:
        return wanted, ""
    if settings.context is not None:
        raise UserError(
            f"--context {settings.context}: the training text has only {tokens:,} tokens; "
            f"at most {longest:,} would leave windows to choose from"
        )
    return longest, f"{longest} tokens instead of {wanted}, since the text is short"


def sliding(model: nn.Module, ids: NDArray[np.int64], context: int, batch_size: int = 64) -> Tensor:
    """(N − 1,) nats of every token of a run but the first, in windows that overlap by half: each prediction sees the
    last `context` / 2 tokens at least, but at the very beginning, and `context` at most."""
    last, width = len(ids) - 1, min(context, len(ids) - 1)
    ends = [width]
    while ends[-1] < last:
        ends.append(min(ends[-1] + max(1, width - width // 2), last))
    fresh = np.diff([0, *ends])
    rows = np.array(ends)[:, None] + np.arange(-width, 1)
    device = next(model.parameters()).device
    nats = []
    for first in range(0, len(ends), batch_size):
        window = torch.from_numpy(ids[rows[first : first + batch_size]]).to(device)
        logs = model(Batch({"text": Stream(ids=window[:, :-1])})).log_softmax(-1)
        losses = -logs.gather(2, window[:, 1:, None])[:, :, 0].double().cpu()
        nats += [
            row[width - count :] for row, count in zip(losses, fresh[first : first + batch_size].tolist(), strict=True)
        ]
    return torch.cat(nats)
