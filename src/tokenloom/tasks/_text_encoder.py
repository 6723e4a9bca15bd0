"""What tasks with a text encoder share: the tokenizer, the sizes, the class token, initialization from another run.

Every such tokenizer has the special tokens "class" and "mask", so that a backbone trained by fill-mask can be
fine-tuned on labels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.config import flag, option
from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.encoder import Encoder, EncoderConfig
from tokenloom.nn.modules import device_of, eval_mode
from tokenloom.tasks._settings import PART_NAMES, TextTokenization, TransformerSizes
from tokenloom.tasks._sizes import size_preset
from tokenloom.tasks.base import Initialization, PreparedData, Report, Task
from tokenloom.tokenizers.base import TextTokenizer
from tokenloom.tokenizers.text import choose_tokenizer, load_tokenizer
from tokenloom.utils.names import with_article

CLASS, MASK = "class", "mask"
SIZES = ("context", "width", "depth", "heads")
# Small data sets are trained for a number of epochs; once that takes so many steps, for the minutes of the preset.
MAX_EPOCH_STEPS = 2000
# For a pre-trained backbone: small enough not to destroy what it has learned.
FINE_TUNING: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}


@dataclass(frozen=True)
class EncoderSettings(TransformerSizes, TextTokenization):
    """Tokenization and sizes of a text encoder; None is derived, or taken from the run of `--init-from`."""

    group: ClassVar[str] = "Model"

    size: Literal["nano", "tiny", "small", "medium", "large"] = option(
        "small", "size preset: the sizes that are not given"
    )
    context: int | None = option(None, "context length in tokens, with the class token", low=3)


class TextEncoderTask(Task):
    """A task whose model is an `Encoder` over the stream "text", each row of which begins with the class token."""

    # Labeled data sets are small, and soon overfitted.
    max_epochs: ClassVar[int] = 20

    def __init__(self, settings: Any = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self._tokenizer: TextTokenizer | None = None
        self._pretrained = False

    # The tokenizer.

    @property
    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer. Raise UserError before there is one."""
        if self._tokenizer is None:
            raise UserError("there is no tokenizer yet: train on a text, or load a run")
        return self._tokenizer

    def train_tokenizer(self, texts: Sequence[str], alphabet: Sequence[str] = ()) -> None:
        """Train the tokenizer on the training texts, unless a loaded run or `--init-from` gave one.

        alphabet: texts whose characters it should know, though nothing else is learned from them.
        """
        if self._tokenizer is None:
            s: EncoderSettings = self.settings
            kind = "byte-bpe" if s.tokenizer == "auto" else s.tokenizer
            self._tokenizer = choose_tokenizer(texts, kind, s.vocab_size, specials=(CLASS, MASK), alphabet=alphabet)

    @property
    def tokenizer_summary(self) -> str:
        """Return the kind of the tokenizer and why it was chosen, for the data report."""
        return f"{self.tokenizer.kind}: {self.tokenizer.reason or 'of the run'}"

    @property
    def class_id(self) -> int:
        """Return the id that begins every row."""
        return self.tokenizer.specials[CLASS]

    @property
    def mask_id(self) -> int:
        """Return the id that replaces a masked token."""
        return self.tokenizer.specials[MASK]

    # Sizes.

    def set_sizes(self, outputs: int, pool: str) -> None:
        """Set `model_config` and every size that was not given. outputs, pool: of the head, see `EncoderConfig`."""
        if self.model_config:
            return
        s: EncoderSettings = self.settings
        preset = size_preset(s.size)
        sizes: dict[str, Any] = {name: getattr(s, name) or preset.sizes[name] for name in SIZES}
        if sizes["width"] % sizes["heads"]:
            raise UserError(f"{flag('width')} {sizes['width']}: must be divisible by {flag('heads')} {sizes['heads']}")
        sizes["dropout"] = preset.dropout if s.dropout is None else s.dropout
        parts = s.parts(EncoderConfig, s.preset)
        config = EncoderConfig(vocab_size=self.tokenizer.vocab_size, **sizes, **parts, outputs=outputs, pool=pool)
        self.model_config = config.as_dict()
        try:
            Encoder(replace(config, depth=1, vocab_size=1, context=1))
        except ValueError as error:
            raise UserError(f"{error} ({flag('width')} and {flag('heads')} decide)") from error
        self.settings = replace(s, **sizes)

    @property
    def context(self) -> int:
        """Return the context length in tokens, with the class token."""
        return int(self.model_config["context"])

    def prepared(self, train: Samples, validation: Samples, report: Report) -> PreparedData:
        """Return loaded data with the training settings and sizes of an encoder."""
        recipe = {**size_preset(self.settings.size).recipe, **(FINE_TUNING if self._pretrained else {})}
        steps = self.max_epochs * -(-len(train) // recipe["batch_size"])
        return PreparedData(
            train,
            validation,
            report,
            recipe={**recipe, "steps": steps} if steps < MAX_EPOCH_STEPS else recipe,
            auto_settings={name: self.model_config[name] for name in (*SIZES, "dropout")},
            sequence_length=self.context,
        )

    def build_model(self, seed: int) -> Encoder:
        return Encoder(EncoderConfig(**self.model_config), seed)

    # Initialization from another run.

    def init_from(self, origin: Task) -> Initialization:
        if not isinstance(origin, TextEncoderTask):
            name = with_article(origin.name)
            raise UserError(f"{flag('init_from')}: {name} run has no encoder, which {self.name} needs")
        s, default = self.settings, self.Settings()
        kind, specials = origin.tokenizer.kind, len(origin.tokenizer.specials)
        theirs = {name: getattr(origin.settings, name) for name in ("size", "preset", *PART_NAMES, *SIZES)}
        fixed = {**theirs, "tokenizer": kind, "vocab_size": origin.tokenizer.vocab_size - specials}
        for name, value in fixed.items():
            given = getattr(s, name)
            if given not in (getattr(default, name), value):
                raise UserError(f"{flag(name)} {given}: the run of {flag('init_from')} has {value}; leave it out")
        self._tokenizer, self._pretrained = origin.tokenizer, True
        self.settings = replace(s, **theirs)
        return Initialization(same_head=lambda: self.outputs() == origin.outputs())

    @abstractmethod
    def outputs(self) -> object:
        """Return what the outputs of the head stand for: equal where a head can be initialized from another."""

    # Batches.

    def stream(self, rows: Sequence[NDArray[Any]]) -> Stream:
        """Return rows of ids as a stream: the class token before each, padded on the right."""
        ids, real = pad([torch.from_numpy(np.concatenate(([self.class_id], row)).astype(np.int64)) for row in rows])
        return Stream(ids=ids, real=None if bool(real.all()) else real)

    def targets(self, rows: Sequence[NDArray[Any]]) -> torch.Tensor:
        """Return the targets (B, N) that belong to `stream`: `IGNORE` at the class token and at padding."""
        joined = [torch.from_numpy(np.concatenate(([IGNORE], row)).astype(np.int64)) for row in rows]
        return pad(joined, IGNORE)[0]

    def probabilities(self, rows: Sequence[NDArray[Any]]) -> torch.Tensor:
        """Return the probabilities for rows of ids: (B, N, outputs) without the class token, or (B, outputs)."""
        with eval_mode(self.model) as model, torch.no_grad():
            logits: torch.Tensor = model(Batch({"text": self.stream(rows)}).to(device_of(self.model)))
        probabilities = logits.float().softmax(-1).cpu()
        return probabilities[:, 1:] if self.model_config["pool"] == "none" else probabilities

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        self.tokenizer.save(folder / "tokenizer.json")
        return {"tokenizer": self.tokenizer.fingerprint()}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(folder / "tokenizer.json", str(saved.get("tokenizer")))
