"""The settings of `image-generation`, and the options of making pictures."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.config import Options, option
from tokenloom.errors import UserError
from tokenloom.generation.sampling import Sampling
from tokenloom.tasks._image_settings import ImageInputSettings, check_reading


@dataclass(frozen=True)
class ImageGenerationSettings(ImageInputSettings):
    """How pictures become cells, and the sizes of the decoder."""

    tokens: str = option("codes", "codes: learned in a stage before; palette: pixels; or a run of image-tokenizer")
    codes: int | None = option(None, "of the stage: different codes [default: 128]")
    factor: int | None = option(None, "of the stage: pixels along the side of a code [default: 4, of small pictures 2]")
    codes_steps: int | None = option(None, "of the stage: optimizer steps")
    colors: int | None = option(None, "of the palette [default: 16, of pictures in color 64]")
    copies: int | None = option(None, "ways in which each picture is seen, slightly turned and bent [default: 8 or 1]")
    unconditional: bool = option(False, "do not look at classes, where there are any")
    class_drop: float = option(0.1, "share of pictures whose class is hidden in training: guidance needs some")
    width: int = option(64, "features of a cell inside the model")
    depth: int = option(4, "layers")
    heads: int = option(4, "attention heads a layer")
    dropout: float = option(0.0, "share of activations dropped in training")

    def check(self) -> None:
        """Raise UserError for values that no model could have, and for settings without effect."""
        check_reading(self)
        for name in ("width", "depth", "heads", "copies", "codes_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.width % (2 * self.heads):
            raise UserError(
                f"--width {self.width}: must be an even number of features for each of --heads {self.heads}"
            )
        for name in ("class_drop", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                what = f"--{name.replace('_', '-')} {getattr(self, name)}"
                raise UserError(f"{what}: must be from 0 up to, but not including, 1")
        idle = {"palette": ("codes", "factor", "codes_steps"), "codes": ("colors",)}
        for name in idle.get(self.tokens, ("codes", "factor", "codes_steps", "colors")):
            if getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} has no effect with --tokens {self.tokens}: leave it out")


@dataclass(frozen=True)
class GenerateOptions(Options):
    """What is to be made, and how each cell is chosen."""

    count: int = option(16, "how many pictures; with --top, how many completions")
    out: str = option("sheet.png", "the sheet to be written")
    class_: str | None = option(None, "make pictures of this class; of all in turn when not given")
    guidance: float = option(1.0, "1: as the model has learned; above: more like the class, and less varied")
    top: str | None = option(None, "complete this picture: its upper half is kept")
    temperature: float = option(1.0, "below 1 more usual, above 1 more unusual; 0 takes the likeliest cell")
    top_k: int | None = option(None, "choose among this many likeliest cells")
    top_p: float | None = option(None, "choose among the likeliest cells of this much probability")
    seed: int = option(0, "seed of the random choices")

    def sampling(self) -> Sampling:
        """How a cell is chosen. Raises UserError for a value out of range."""
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
