"""Draw one figure as SVG and PNG, with the colours and fonts of the report.

Figures are narrow (345 points), so that their text is readable on a phone without zooming. Ink and
grid are two fixed colours, which `inline` turns into CSS variables: one drawing serves light and
dark mode.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.paths import atomic_file, write_text

INK, GRID = "#1f2328", "#d3d8de"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7a6fbe", "#8c8c8c")
SIZE = (4.8, 3.3)
_NAMED = {"full": 0, "random": 1, "network": 2}
"""The common arms have the same colour in every figure."""
_MARKERS = "osD^vPX*"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    name: str
    """File name without suffix."""
    title: str
    caption: str
    svg: str
    png: bytes

    def save(self, folder: Path) -> None:
        """Write NAME.svg and NAME.png."""
        write_text(folder / f"{self.name}.svg", self.svg)
        with atomic_file(folder / f"{self.name}.png") as temporary:
            temporary.write_bytes(self.png)


Paint = Callable[[Any], None]


def draw(
    name: str, title: str, caption: str, paint: Paint, size: tuple[float, float] = SIZE
) -> Drawing:
    """Draw a figure of `size` inches; `paint` is called with its matplotlib axes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.add_subplot())
        lay_out(figure)
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None}, dpi=160)
        figure.savefig(png, format="png", dpi=200, facecolor="white")
    return Drawing(name, title, caption, svg.getvalue(), png.getvalue())


def lay_out(figure: Any) -> None:
    """Lay out a figure once: with an engine, it is laid out and drawn twice for each file."""
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)


def plain(text: object) -> str:
    """Return text that a user chose, such as the name of an arm, as matplotlib draws it unchanged.

    It would read what is between two dollar signs as a formula, and leaves what begins with an
    underscore out of legends.
    """
    shown = str(text).replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown


def inline(svg: str) -> str:
    """Return the SVG element for an HTML page, with its two fixed colours as CSS variables."""
    element = svg[svg.index("<svg") :]
    element = element.replace(INK, "var(--ink)").replace(GRID, "var(--line)")
    # The page sets the size; the viewBox keeps the proportions.
    head, _, body = element.partition(">")
    return re.sub(r' (?:width|height)="[^"]*"', "", head) + ' role="img">' + body


def line_style(value: Any, order: int) -> dict[str, str | float]:
    """Return colour and marker of an arm; `order` is its position among the arms."""
    number = _NAMED.get(str(value), order)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 5,
        "linewidth": 1.6,
    }
