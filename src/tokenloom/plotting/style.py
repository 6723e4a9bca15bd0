"""The style of all figures, light and dark."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.errors import UserError
from tokenloom.utils.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Palette:
    """Colors of a style. `series` is distinguishable with all common kinds of color blindness."""

    background: str
    ink: str
    faint: str
    grid: str
    series: tuple[str, ...]


# The hues are those of Okabe and Ito, "Color universal design" (2008); lightened for the dark style so that each
# has a contrast of at least 3:1 to the background.
LIGHT = Palette("#ffffff", "#1f2328", "#5d6570", "#e4e7eb", ("#0072b2", "#c8500a", "#00805e", "#a8518a"))
DARK = Palette("#14171c", "#e6e9ee", "#9aa3af", "#2b3038", ("#62bdf0", "#f0a04b", "#2fc79c", "#dd94c0"))

OTHER_SCRIPTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Hiragino Sans",
    "PingFang SC",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
)


def palette(dark: bool) -> Palette:
    """Return the colors of the dark or the light style."""
    return DARK if dark else LIGHT


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of width × height inches at 150 dpi, with its own canvas and no global state.

    Raises UserError when matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing needs matplotlib: pip install 'tokenloom[plots]'") from error
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colormap(look: Palette) -> Colormap:
    """Return the colors of a heat map, from the background to the first series."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat map", [look.background, look.series[0]])


def apply(figure: Figure, axes: Axes, dark: bool) -> None:
    """Apply the style to a finished figure: colors, fonts, grid, no frame. Call it last."""
    from matplotlib.text import Text

    look = palette(dark)
    figure.set_facecolor(look.background)
    axes.set_facecolor(look.background)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(look.faint)
    axes.grid(True, color=look.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=look.faint, labelcolor=look.ink, labelsize=10)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=look.ink, fontsize=11)
    texts = [child for child in axes.get_children() if isinstance(child, Text)]  # titles and annotations
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set(facecolor=look.background, edgecolor=look.grid, alpha=0.9)
        texts += legend.get_texts()
    script_fonts = families()
    for text in texts:
        # File names may contain dollar signs, which are not formulas, and any script.
        text.set(color=look.ink, parse_math=False, fontfamily=script_fonts)


def families() -> list[str]:
    """Return matplotlib's default font, then installed fonts for other scripts."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in OTHER_SCRIPTS if name in installed)]


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, atomically.

    Raises UserError where the place cannot be written, or its name ends as another kind of file does.
    """
    path = place_of(path)
    buffer = BytesIO()
    with warnings.catch_warnings():
        # A missing glyph is drawn as a box; a warning would clutter a run's output.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", facecolor=figure.get_facecolor(), metadata={"Software": None})
    write_png(buffer.getvalue(), path)


def place_of(path: str | Path) -> Path:
    """Return the path of a figure, checked before it is drawn, which may take minutes.

    Raise UserError for a folder, for another suffix than .png, and below a file.
    """
    path = Path(path)
    if path.suffix.lower() not in ("", ".png"):
        raise UserError(f"{path}: figures are written as PNG; give a name that ends in .png")
    above = next((folder for folder in path.parents if folder.exists()), Path())
    reason = "it is a folder" if path.is_dir() else None if above.is_dir() else f"{above} is a file"
    if reason is not None:
        raise UserError(f"cannot write the figure {path}: {reason}")
    return path


def write_png(raw: bytes, path: Path) -> None:
    """Write a figure atomically. Raise UserError where it cannot be written."""
    write_bytes(path, raw)
