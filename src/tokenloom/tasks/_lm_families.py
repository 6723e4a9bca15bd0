"""The families of language models that text generation can train: GPTs, n-grams, recurrent networks.

A family decides the sizes that are not given, builds the model and has its training recipe; `text_generation.py` does
not ask which family it has.
"""

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
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.models.ngram import Ngram, fit_jelinek_mercer
from tokenloom.models.ngram_lm import NgramModel
from tokenloom.models.ngram_smoothing import AddK, KneserNey, Smoothing
from tokenloom.models.recurrent import RecurrentConfig, RecurrentLM
from tokenloom.nn.modules import device_of
from tokenloom.tasks._sizes import size_preset
from tokenloom.training.losses import LossTerm, cross_entropy_term

# Tokens per call of `step` where a state is carried through a text.
CHUNK = 1024


@dataclass(frozen=True)
class ResolvedSizes:
    """Sizes of a model. config: what `build` needs. settings: those that were decided. note: for the report."""

    config: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""


class ModelFamily(ABC):
    """Models that predict the next token. shown: the sizes to report. fitted: by `fit`, without gradients."""

    shown: ClassVar[tuple[str, ...]]
    fitted: ClassVar[bool] = False

    @abstractmethod
    def resolve(self, settings: Any, num_tokens: int, vocab_size: int) -> ResolvedSizes:
        """Decide every size that was not given, from the settings and the length of the training text."""

    @abstractmethod
    def build(self, config: dict[str, Any], seed: int) -> nn.Module:
        """Return a model of the sizes that `resolve` returned."""

    def fit(self, config: dict[str, Any], ids: NDArray[Any], separator: int | None) -> nn.Module:
        """Return a model fitted to a run of ids; sizes that are found go into the config. separator: the end token."""
        raise NotImplementedError

    def recipe(self, settings: Any) -> dict[str, Any]:
        """Return training settings that suit the model."""
        return {}

    def burn_in(self, config: dict[str, Any]) -> int:
        """Return the number of tokens that the model reads before each training window."""
        return 0

    def max_context(self, config: dict[str, Any]) -> int | None:
        """Return the length of the longest window that the model can read; None without a limit."""
        return None

    def loss_term(self, model: nn.Module, batch: Batch) -> LossTerm:
        """Return the cross-entropy of the next token."""
        return cross_entropy_term(model(batch), batch.targets["loss"])

    def sliding_nats(self, model: nn.Module, ids: NDArray[np.int64]) -> Tensor:
        """Return (N − 1,) nats of every token of a run but the first, each with all the context that the model can use.

        By default, the text is fed in chunks and the state is carried from each to the next.
        """
        steps: Any = model
        tokens = torch.from_numpy(ids)[None].to(device_of(model))
        state, nats = steps.init_state(1), []
        for first in range(0, len(ids) - 1, CHUNK):
            targets = tokens[0, first + 1 : first + 1 + CHUNK]
            log_probs, state = steps.step(tokens[:, first : first + len(targets)], state)
            nats.append(-log_probs[0].gather(1, targets[:, None])[:, 0].double().cpu())
        return torch.cat(nats)


def fit_context(settings: Any, context: int, num_tokens: int) -> tuple[int, str]:
    """Return the context length that a text of so many tokens allows, and a note when it is shorter.

    Raise UserError where the context was given and the text is too short for it.
    """
    longest = max(1, num_tokens // 4)
    if context <= longest:
        return context, ""
    if settings.context is not None:
        raise UserError(
            f"--context {settings.context}: the training text has only {num_tokens:,} tokens; "
            f"at most {longest:,} would leave windows to choose from"
        )
    return longest, f"{longest} tokens instead of {context}, since the text is short"


# GPT.

# The textbook's own training.
CLASSIC_RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 6e-3,
    "weight_decay": 0.01,
    "weight_decay_on": "all",
    "beta2": 0.999,
    "grad_clip": 0.0,
    "lr_schedule": "cosine",
    "warmup_steps": 100,
    "steps": 900,
    "batch_size": 32,
}


class GPTFamily(ModelFamily):
    """Decoder-only transformers."""

    shown: ClassVar = ("context", "width", "depth", "heads", "dropout")

    def resolve(self, settings: Any, num_tokens: int, vocab_size: int) -> ResolvedSizes:
        s, size = settings, size_preset(settings.size)
        chosen: dict[str, Any] = {name: getattr(s, name) or value for name, value in size.sizes.items()}
        chosen["context"], note = fit_context(s, chosen["context"], num_tokens)
        if chosen["width"] % chosen["heads"]:
            raise UserError(f"--width {chosen['width']}: is not a multiple of --heads {chosen['heads']}")
        dropout = size.dropout if s.dropout is None else s.dropout
        config = GPTConfig(vocab_size=vocab_size, **chosen, **s.parts(GPTConfig, s.preset)).as_dict()
        config["dropout"] = 0.0 if s.preset == "classic" and s.dropout is None else dropout
        config |= {"kv_heads": s.kv_heads, "sliding_window": s.sliding_window}
        _check_sizes(config)
        return ResolvedSizes(config, {**chosen, "dropout": config["dropout"]}, note)

    def build(self, config: dict[str, Any], seed: int) -> GPT:
        return GPT(GPTConfig(**config), seed)

    def recipe(self, settings: Any) -> dict[str, Any]:
        return CLASSIC_RECIPE if settings.preset == "classic" else size_preset(settings.size).recipe

    def max_context(self, config: dict[str, Any]) -> int | None:
        return None if config["sliding_window"] is not None else int(config["context"])

    def sliding_nats(self, model: nn.Module, ids: NDArray[np.int64]) -> Tensor:
        """Carry the cache of a model with sliding-window attention; otherwise use windows that overlap by half."""
        context: Any = model.context
        return super().sliding_nats(model, ids) if context is None else overlapping_nats(model, ids, context)


def _check_sizes(config: dict[str, Any]) -> None:
    """Raise UserError for sizes that do not go together, before any work."""
    small = {"depth": 1, "vocab_size": 1, "context": 1}
    if config["width"] % (2 * config["heads"]) == 0:
        # A narrow model fails in the same way, and one too large for this machine can be planned.
        small["width"] = 2 * config["heads"]
    try:
        GPT(GPTConfig(**{**config, **small}))
    except ValueError as error:
        sizes = " (--width, --heads and --kv-heads decide)" if "head" in str(error) else ""
        raise UserError(f"{error}{sizes}") from error


def overlapping_nats(model: nn.Module, ids: NDArray[np.int64], context: int, batch_size: int = 64) -> Tensor:
    """Return (N − 1,) nats of every token of a run but the first, from windows that overlap by half.

    Each prediction sees the last `context` / 2 tokens at least, except at the beginning, and `context` at most.
    """
    last, width = len(ids) - 1, min(context, len(ids) - 1)
    ends = [width]
    while ends[-1] < last:
        ends.append(min(ends[-1] + max(1, width - width // 2), last))
    new = np.diff([0, *ends])
    rows = np.array(ends)[:, None] + np.arange(-width, 1)
    device = next(model.parameters()).device
    nats = []
    for first in range(0, len(ends), batch_size):
        window = torch.from_numpy(ids[rows[first : first + batch_size]]).to(device)
        log_probs = model(Batch({"text": Stream(ids=window[:, :-1])})).log_softmax(-1)
        losses = -log_probs.gather(2, window[:, 1:, None])[:, :, 0].double().cpu()
        counts = new[first : first + batch_size].tolist()
        nats += [row[width - count :] for row, count in zip(losses, counts, strict=True)]
    return torch.cat(nats)


# N-grams.

ORDERS = {"unigram": 1, "bigram": 2, "ngram": 6}
# Keys are (number of a context) · vocab_size + token, in 64 bits.
MAX_KEY = 2**63 - 1


class NgramFamily(ModelFamily):
    """Bag of words, bigrams and n-grams of any order, smoothed."""

    shown: ClassVar = ("ngram_order", "ngram_smoothing", "add_k", "context")
    fitted: ClassVar = True

    def resolve(self, settings: Any, num_tokens: int, vocab_size: int) -> ResolvedSizes:
        s = settings
        context, note = fit_context(s, s.context or size_preset("small").sizes["context"], num_tokens)
        smoothing = smoothing_of(s)
        chosen: dict[str, Any] = {"ngram_smoothing": smoothing, "context": context}
        if smoothing == "add-k":
            chosen["add_k"] = 1.0 if s.add_k is None else s.add_k
        order = s.ngram_order or ORDERS[s.model]
        if s.model == "ngram":
            chosen["ngram_order"] = order
        return ResolvedSizes({"vocab_size": vocab_size, **chosen, "ngram_order": order}, chosen, note)

    def build(self, config: dict[str, Any], seed: int) -> NgramModel:
        if "sizes" not in config:
            raise UserError("the sizes of an n-gram model are known once it is fitted")
        interpolated = config["ngram_smoothing"] != "add-k"
        return NgramModel(
            config["vocab_size"], config["sizes"], interpolated=interpolated, separator=config["separator"]
        )

    def fit(self, config: dict[str, Any], ids: NDArray[Any], separator: int | None) -> NgramModel:
        vocab_size, order = config["vocab_size"], config["ngram_order"]
        if len(ids) * vocab_size > MAX_KEY:
            raise UserError(f"--vocab-size {vocab_size:,}: too many different ids for a text of {len(ids):,} tokens")
        smoothing: Smoothing = KneserNey(modified=config["ngram_smoothing"] == "modified-kneser-ney")
        if config["ngram_smoothing"] == "add-k":
            smoothing = AddK(config["add_k"])
        elif config["ngram_smoothing"] == "jelinek-mercer":
            smoothing = fit_jelinek_mercer([ids], vocab_size, order, separator)
        model = NgramModel.of(Ngram.fit([ids], vocab_size, order, smoothing, separator=separator))
        config |= {"sizes": [len(level.keys) for level in model.ngram.levels], "separator": separator}
        return model

    def loss_term(self, model: nn.Module, batch: Batch) -> LossTerm:
        """Look up the targets alone, without the log-probabilities of all other tokens."""
        assert isinstance(model, NgramModel)
        targets = batch.targets["loss"]
        return LossTerm(-model.log_probs(batch, targets).sum(1), (targets != IGNORE).sum(1))

    def sliding_nats(self, model: nn.Module, ids: NDArray[np.int64]) -> Tensor:
        assert isinstance(model, NgramModel)
        return torch.from_numpy(-model.ngram.log_probs(ids)[1:])


def smoothing_of(settings: Any) -> str:
    """Return the smoothing that is given, or that of the model."""
    return str(settings.ngram_smoothing or ("kneser-ney" if settings.model == "ngram" else "add-k"))


# Recurrent networks.

# Layers, width and context by size.
RECURRENT_SIZES = {
    "nano": (1, 64, 64),
    "tiny": (1, 128, 128),
    "small": (1, 256, 128),
    "medium": (2, 384, 128),
    "large": (2, 768, 128),
}
RECURRENT_DROPOUT = {"medium": 0.1, "large": 0.3}
# Far above those of transformers; the Elman network needs smaller steps.
LEARNING_RATES = {"rnn": 8e-3, "lstm": 2e-2, "gru": 1.5e-2}


class RecurrentFamily(ModelFamily):
    """Elman network, LSTM and GRU."""

    shown: ClassVar = ("context", "burn_in", "width", "depth", "dropout")

    def resolve(self, settings: Any, num_tokens: int, vocab_size: int) -> ResolvedSizes:
        s = settings
        depth, width, wanted = RECURRENT_SIZES[s.size]
        context, note = fit_context(s, s.context or wanted, num_tokens)
        chosen: dict[str, Any] = {
            "context": context,
            "width": s.width or width,
            "depth": s.depth or depth,
            # As many tokens as gradients go back through, but no more than the text has.
            "burn_in": min(context, max(0, num_tokens - context - 1)) if s.burn_in is None else s.burn_in,
            "dropout": RECURRENT_DROPOUT.get(s.size, 0.0) if s.dropout is None else s.dropout,
        }
        # A small vocabulary needs no embedding: the first layer's map has a row per id.
        embedding = None if vocab_size <= chosen["width"] else chosen["width"]
        config = RecurrentConfig(cell=s.model, vocab_size=vocab_size, embedding_dim=embedding, **chosen)
        return ResolvedSizes(config.as_dict(), chosen, note)

    def build(self, config: dict[str, Any], seed: int) -> RecurrentLM:
        return RecurrentLM(RecurrentConfig(**config), seed)

    def recipe(self, settings: Any) -> dict[str, Any]:
        return {
            "optimizer": "adamw",
            "lr": LEARNING_RATES[settings.model],
            "batch_size": 32,
            "weight_decay": 0.0,
            "beta2": 0.99,
            "grad_clip": 1.0,
            "warmup_steps": 20,
            "decay_fraction": 1.0,
            "minutes": 5.0,
        }

    def burn_in(self, config: dict[str, Any]) -> int:
        return int(config["burn_in"])


FAMILIES: Mapping[str, ModelFamily] = {
    "gpt": GPTFamily(),
    **dict.fromkeys(("unigram", "bigram", "ngram"), NgramFamily()),
    **dict.fromkeys(("rnn", "lstm", "gru"), RecurrentFamily()),
}
