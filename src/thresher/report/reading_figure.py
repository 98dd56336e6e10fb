"""Bar chart of reading speed by container."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from thresher.errors import InvalidValueError
from thresher.report.scaling_figures import new_figure, save_figure

COLOURS = {"sequential": "#4477aa", "random": "#ee7733"}
SUFFIXES = (".svg", ".png", ".pdf")


def check_suffix(path: Path) -> None:
    """Check that a figure can be written to `path`; call it before a long measurement."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidValueError(f"{path} must end in {', '.join(SUFFIXES)}")


def reading_figure(rates: Mapping[tuple[str, str], float], title: str, path: Path) -> None:
    """Draw images per second by (container, access); access is a key of `COLOURS`."""
    check_suffix(path)
    fastest: dict[str, float] = {}
    for (container, _), rate in rates.items():
        fastest[container] = max(rate, fastest.get(container, 0.0))
    names = sorted(fastest, key=lambda name: fastest[name])
    figure = new_figure(7, 0.9 + 0.5 * len(names))
    axes = figure.subplots()
    for offset, (access, colour) in zip((0.2, -0.2), COLOURS.items(), strict=True):
        values = [rates.get((name, access), 0.0) for name in names]
        axes.barh(np.arange(len(names)) + offset, values, 0.38, label=access, color=colour)
        for y, value in enumerate(values):
            text = f" {value:,.0f}" if value else " —"
            axes.text(value or min(rates.values()), y + offset, text, va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlabel="images per second")
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    save_figure(figure, path, dpi=150)
