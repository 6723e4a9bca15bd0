"""What all tasks share that read text with an encoder: the tokenizer, the sizes, the class token, the weights.

Every such tokenizer has the special tokens "class" and "mask", so that a body that has learned to fill in words can go
on to label them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.config import Options, option
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.encoder import Encoder, EncoderConfig
from tokenloom.tasks._paths import STEPWISE, every_path
from tokenloom.tasks._sizes import size_preset
from tokenloom.tasks.base import PreparedData, Task
from tokenloom.tokenizers.base import TextTokenizer
from tokenloom.tokenizers.text import choose_tokenizer, load_tokenizer
from tokenloom.utils.names import did_you_mean, with_article

CLASS, MASK = "class", "mask"
SIZES = ("context", "width", "depth", "heads")
# Data that are passed over so often in fewer than so many steps are few: the passes are the measure, not the minutes.
SHORT = 2000
# A body that has learned something is not to forget it.
GENTLE: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}


@dataclass(frozen=True)
class EncoderSettings(Options):
    """How text becomes tokens, and the model's sizes; None = derived, or taken over from the run of `--init-from`."""

    size: str = option("small", "how large a model: nano, tiny, small, medium or large; sets what is not given below")
    preset: Literal["modern", "classic"] = option("modern", "parts of the model: modern, or as in the textbook")
    context: int | None = option(None, "tokens that the model reads at once, the class token among them")
    width: int | None = option(None, "features of a token inside the model")
    depth: int | None = option(None, "layers")
    heads: int | None = option(None, "attention heads a layer")
    dropout: float | None = option(None, "share of activations dropped in training")
    tokenizer: str = option("auto", "char, word, bpe or byte-bpe; auto takes byte-bpe")
    vocab_size: int | None = option(None, "ids of a word, bpe or byte-bpe tokenizer")


class TextEncoderTask(Task):
    """A task whose model is an `Encoder` over the stream "text", each row of which begins with the class token."""

    head: ClassVar[str] = "head."
    # Labeled data are soon known by heart.
    most_epochs: ClassVar[int] = 20

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self._tokenizer: TextTokenizer | None = None
        self._adopted = False
        self._check_sizes()

    def _check_sizes(self) -> None:
        s: EncoderSettings = self.settings
        for name in (*SIZES, "vocab_size"):
            value, least = getattr(s, name), 3 if name == "context" else 1
            if value is not None and value < least:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
        if s.dropout is not None and not 0 <= s.dropout < 1:
            raise UserError(f"--dropout {s.dropout}: must be from 0 up to, but not including, 1")
        if s.preset not in EncoderConfig.presets:
            raise UserError(f"--preset {s.preset}: no such preset{did_you_mean(s.preset, EncoderConfig.presets)}")
        size_preset(s.size)

    # The tokenizer.

    @property
    def tokenizer(self) -> TextTokenizer:
        """Between text and ids. Raises UserError before there is one."""
        if self._tokenizer is None:
            raise UserError("there is no tokenizer yet: train on a text, or load a run")
        return self._tokenizer

    def train_tokenizer(self, texts: Sequence[str], alphabet: Sequence[str] = ()) -> None:
        """Learn it from the training texts, unless there is one: of a loaded run, or of the run of `--init-from`.

        alphabet: texts whose characters it should know, though nothing else is learned from them.
        """
        if self._tokenizer is None:
            s: EncoderSettings = self.settings
            kind = "byte-bpe" if s.tokenizer == "auto" else s.tokenizer
            self._tokenizer = choose_tokenizer(texts, kind, s.vocab_size, specials=(CLASS, MASK), alphabet=alphabet)

    @property
    def class_id(self) -> int:
        """The id that stands first in every row."""
        return self.tokenizer.specials[CLASS]

    @property
    def mask_id(self) -> int:
        """The id that stands in the place of a token to be filled in."""
        return self.tokenizer.specials[MASK]

    # Sizes.

    def settle(self, outputs: int, pool: str) -> None:
        """Decide every size that was not given. outputs, pool: of the head, see `EncoderConfig`."""
        if self.model_config:
            return
        s: EncoderSettings = self.settings
        position = size_preset(s.size)
        chosen: dict[str, Any] = {name: getattr(s, name) or position.sizes[name] for name in SIZES}
        if chosen["width"] % chosen["heads"]:
            raise UserError(f"--width {chosen['width']}: cannot be shared evenly among --heads {chosen['heads']}")
        dropout = position.dropout if s.dropout is None else s.dropout
        self.model_config = EncoderConfig(
            vocab_size=self.tokenizer.vocab_size,
            **chosen,
            **EncoderConfig.parts(s.preset),
            dropout=dropout,
            outputs=outputs,
            pool=pool,
        ).as_dict()
        try:
            Encoder(EncoderConfig(**{**self.model_config, "depth": 1, "vocab_size": 1, "context": 1}))
        except ValueError as error:
            raise UserError(f"{error} (--width and --heads decide)") from error
        changes = {**chosen, "dropout": dropout}
        self.settings = replace(s, **changes)

    @property
    def context(self) -> int:
        """How many tokens the model reads at once."""
        return int(self.model_config["context"])

    def derived(self) -> dict[str, Any]:
        return {name: self.model_config[name] for name in (*SIZES, "dropout")}

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        recipe = {**size_preset(self.settings.size).recipe, **(GENTLE if self._adopted else {})}
        steps = self.most_epochs * -(-len(material.training) // recipe["batch_size"])
        return {**recipe, "steps": steps} if steps < SHORT else recipe

    def build(self, seed: int) -> Encoder:
        return Encoder(EncoderConfig(**self.model_config), seed)

    # Starting from another run.

    def adopt_config(self, origin: Task) -> None:
        if not isinstance(origin, TextEncoderTask):
            raise UserError(f"--init-from: {with_article(origin.name)} run has no encoder, which {self.name} needs")
        s, plain = self.settings, self.Settings()
        kind, specials = origin.tokenizer.kind, len(origin.tokenizer.specials)
        theirs = {name: getattr(origin.settings, name) for name in ("size", "preset", *SIZES)}
        told = {**theirs, "tokenizer": kind, "vocab_size": origin.tokenizer.vocab_size - specials}
        for name, value in told.items():
            given = getattr(s, name)
            if given not in (getattr(plain, name), value):
                raise UserError(f"--{name.replace('_', '-')} {given}: the run of --init-from has {value}; leave it out")
        self._tokenizer, self._adopted = origin.tokenizer, True
        self.settings = replace(s, **theirs)

    # Batches.

    def rows(self, rows: Sequence[NDArray[Any]]) -> Stream:
        """The stream of rows of ids, with the class token put before each, padded on the right."""
        ids, real = pad([torch.from_numpy(np.concatenate(([self.class_id], row)).astype(np.int64)) for row in rows])
        return Stream(ids=ids, real=None if bool(real.all()) else real)

    def targets(self, rows: Sequence[NDArray[Any]]) -> torch.Tensor:
        """The targets that go with `rows`: nothing is asked at the class token, nor at padding."""
        joined = [torch.from_numpy(np.concatenate(([IGNORE], row)).astype(np.int64)) for row in rows]
        return pad(joined, IGNORE)[0]

    def read(self, rows: Sequence[NDArray[Any]]) -> torch.Tensor:
        """The model's probabilities for rows of ids: (B, N, outputs) without the class token, or (B, outputs)."""
        with self.ready() as model, torch.no_grad():
            logits: torch.Tensor = model(Batch({"text": self.rows(rows)}).to(self.device))
        probabilities = logits.float().softmax(-1).cpu()
        return probabilities[:, 1:] if self.model_config["pool"] == "none" else probabilities

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        self.tokenizer.save(folder / "tokenizer.json")
        return {"tokenizer": self.tokenizer.fingerprint()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(folder / "tokenizer.json", str(kept.get("tokenizer")))

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path(
        dict.fromkeys(STEPWISE, "an encoder reads a text at once, and nothing grows step by step")
    )
