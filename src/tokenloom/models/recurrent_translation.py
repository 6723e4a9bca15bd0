"""The recurrent encoder–decoder, with and without attention.

Without attention the decoder knows of the source only the encoder's last state, a vector of fixed size: Sutskever et
al. 2014; Cho et al. 2014. With attention each step of the decoder attends to all states of the encoder: Bahdanau et al.
2015; here in the form of Luong et al. 2015, in which all steps of a target are trained at once. Bishop & Bishop,
section 12.2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import MemoryCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import InitTable, constant, initialize, normal, normal_by_inputs
from tokenloom.nn.masks import Padding


@dataclass(frozen=True)
class RecurrentTranslatorConfig:
    """Sizes. Vocabularies and `shared_vocab` as in `EncoderDecoderConfig`. width: features of a token and of a state;
    each direction of the encoder has half. depth: layers of each side."""

    source_vocab_size: int
    target_vocab_size: int
    width: int
    depth: int
    attention: bool = True
    shared_vocab: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.shared_vocab and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            raise ValueError(f"a shared vocabulary needs the same size on both sides, not {sizes}")
        if self.width % 2:
            raise ValueError(f"a width of {self.width} does not divide into two directions")

    def as_dict(self) -> dict[str, Any]:
        """Return the entries for config.json."""
        return asdict(self)


_TABLE: InitTable = [
    ("*tokens.weight", normal(1.0)),
    ("*.weight_[ih]h_l0", normal_by_inputs()),
    ("*.bias_[ih]h_l0", constant(0.0)),
    ("*.W_[qkvo].weight?", normal_by_inputs()),
    ("bridge.weight", normal_by_inputs()),
    ("join.weight?", normal_by_inputs()),
    ("lm_head.weight", normal_by_inputs(0.5)),
    ("*.bias", constant(0.0)),
]


class RecurrentTranslator(nn.Module):
    """Source tokens → bidirectional GRU encoder; start and target tokens → GRU decoder → linear head.

    Gated recurrent units (Cho et al. 2014). The decoder's layer l starts from h = tanh(W [last state of each direction
    of the encoder's layer l]). With attention, c = attention(its output o, all states of the encoder), and the head
    reads tanh(W [o; c]) instead of o. Streams and ids as in `EncoderDecoder`.
    """

    def __init__(self, config: RecurrentTranslatorConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        D = c.width
        self.tokens = nn.Embedding(c.target_vocab_size + 1 if c.shared_vocab else c.source_vocab_size, D)
        self.target_tokens = None if c.shared_vocab else nn.Embedding(c.target_vocab_size + 1, D)
        self.forwards = nn.ModuleList(nn.GRU(D, D // 2, batch_first=True) for _ in range(c.depth))
        self.backwards = nn.ModuleList(nn.GRU(D, D // 2, batch_first=True) for _ in range(c.depth))
        self.bridge = nn.Linear(D, D)
        self.decoder = nn.ModuleList(nn.GRU(D, D, batch_first=True) for _ in range(c.depth))
        self.cross = MultiHeadAttention(D, 1) if c.attention else None
        self.join = nn.Linear(2 * D, D) if c.attention else None
        self.dropout = nn.Dropout(c.dropout)
        self.lm_head = nn.Linear(D, c.target_vocab_size)
        initialize(self, _TABLE, torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model predicts."""
        return self.config.target_vocab_size

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, N, vocab) for the stream "target".

        Hooks: with attention, those of `cross`; the alignment is `cross.pattern` (B, 1, N, M).
        """
        memory, real, hidden = self.encode(batch["source"])
        target = batch["target"]
        ids, shift, _ = _moved_left(target)
        O, _ = self.recur(ids, hidden)
        if shift is not None:
            # Back to the positions of the tokens.
            index = (torch.arange(O.shape[1], device=O.device) - shift).clamp(min=0)
            O = O.gather(1, index[..., None].expand_as(O))
        return self.read_out(O, memory, real, hooks=hooks)

    def encode(self, source: Stream) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the states of all source tokens (B, M, D), padded on the right; which are real (B, M); and the initial
        state of each layer of the decoder (L, B, D)."""
        ids, _, lengths = _moved_left(source)
        places = torch.arange(ids.shape[1], device=ids.device)
        # The tokens of each row in reverse; padding stays behind them.
        back = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)[..., None]
        last = (lengths - 1)[:, None, None]
        X = self.dropout(self.tokens(ids))
        starts = []
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            F, _ = forwards(X)
            R, _ = backwards(X.gather(1, back.expand_as(X)))
            ends = [H.gather(1, last.expand(-1, 1, H.shape[2]))[:, 0] for H in (F, R)]
            starts.append(torch.tanh(self.bridge(torch.cat(ends, -1))))
            X = self.dropout(torch.cat((F, R.gather(1, back.expand_as(R))), -1))
        real = None if source.real is None else places < lengths[:, None]
        return X, real, torch.stack(starts)

    def recur(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The decoder's last layer for tokens (B, N) from states (L, B, D): (B, N, D); and all states of each layer."""
        X: Tensor = self.dropout((self.tokens if self.target_tokens is None else self.target_tokens)(ids))
        states = []
        for layer, h in zip(self.decoder, hidden, strict=True):
            H, _ = layer(X, h[None].contiguous())
            states.append(H)
            X = self.dropout(H)
        return X, states

    def read_out(
        self,
        O: Tensor,
        memory: Tensor | None,
        real: Tensor | None,
        *,
        cache: MemoryCache | None = None,
        hooks: Hooks | None = None,
    ) -> Tensor:
        """Return logits (B, N, vocab) from the decoder's outputs (B, N, D) and the encoder's states."""
        if self.cross is not None and self.join is not None:
            mask, inner = None if real is None else Padding(real), None if hooks is None else hooks.scope("cross")
            C = self.cross(O, memory, mask=mask, cache=cache, hooks=inner)
            O = self.dropout(torch.tanh(self.join(torch.cat((O, C), -1))))
        logits: Tensor = self.lm_head(O)
        return logits if hooks is None else hooks.record("logits", logits)

    def decoder_of(self, batch: Batch) -> RecurrentSteps:
        """Return a `StepModel` for the sources of a batch."""
        return RecurrentSteps(self, batch["source"])


def _moved_left(stream: Stream) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return ids (B, N) padded on the right, by how much each row was moved (B, 1), and lengths (B,)."""
    ids, real = stream.tokens, stream.real
    if real is None:
        return ids, None, torch.full((len(ids),), ids.shape[1], device=ids.device)
    shift = real.int().argmax(1, keepdim=True)
    index = (torch.arange(ids.shape[1], device=ids.device) + shift).clamp(max=ids.shape[1] - 1)
    return ids.gather(1, index), shift, real.sum(1)


class RecurrentState:
    """The decoding state: the states of the layers (L, B, D), the number of tokens fed, and the encoder's states, as in
    `TranslationState`."""

    def __init__(
        self, hidden: Tensor, lengths: Tensor, memory: Tensor | None, real: Tensor | None, cache: MemoryCache
    ) -> None:
        self.hidden, self.lengths = hidden, lengths
        self.memory, self.real, self.cache = memory, real, cache

    def select(self, rows: Tensor) -> RecurrentState:
        """Return an independent state of the given rows, which may repeat."""
        memory, real = (None if one is None else one[rows] for one in (self.memory, self.real))
        return RecurrentState(self.hidden[:, rows], self.lengths[rows], memory, real, self.cache.select(rows))

    def repeat(self, n: int) -> RecurrentState:
        """Return an independent state with every row n times."""
        return repeat_rows(self, n)


class RecurrentSteps:
    """A recurrent encoder–decoder as a `StepModel` for given sources, which are encoded once."""

    context = None

    @torch.no_grad()
    def __init__(self, model: RecurrentTranslator, source: Stream) -> None:
        self.model, self.vocab_size = model, model.vocab_size
        self.device = model.lm_head.weight.device
        self._memory, self._real, self._hidden = model.encode(source.to(self.device))

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> RecurrentState:
        """Return the state of rows that have read nothing. rows: the index of each row's source."""
        index = torch.tensor(range(batch) if rows is None else rows, dtype=torch.int64, device=self.device)
        real = None if self._real is None else self._real[index]
        lengths = torch.zeros_like(index)
        return RecurrentState(self._hidden[:, index], lengths, self._memory[index], real, MemoryCache())

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, RecurrentState]:
        """Feed a chunk (B, N): see `StepModel`."""
        if not isinstance(state, RecurrentState):
            raise ValueError(f"a translator needs a state made by its own init_state(), not {type(state).__name__}")
        fed = torch.full_like(state.lengths, tokens.shape[1]) if counts is None else counts
        O, states = self.model.recur(tokens, state.hidden)
        logits = self.model.read_out(O, state.memory, state.real, cache=state.cache)
        last = (fed - 1)[:, None, None]
        hidden = torch.stack([H.gather(1, last.expand(-1, 1, H.shape[2]))[:, 0] for H in states])
        memory = None if state.cache.complete else state.memory
        after = RecurrentState(hidden, state.lengths + fed, memory, state.real, state.cache)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), after
