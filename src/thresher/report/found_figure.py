"""Images that a filter dropped or kept, beside what was known about them."""

from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.images import shown_channels
from thresher.data.pack import Pack
from thresher.report.drawing import plain
from thresher.report.scaling_figures import new_figure, save_figure

PER_ROW = 10


def found_figure(
    pack: Pack, true_labels: np.ndarray, rows: dict[str, np.ndarray], path: Path
) -> None:
    """Draw rows of images with their labels, and the true label where it differs.

    Args:
        pack: The images and their labels.
        true_labels: (n,) by position in the pack.
        rows: Positions in the pack by the title of the row.
        path: PNG file to write.
    """
    figure = new_figure(PER_ROW * 0.85, len(rows) * 1.35)
    parts: Any = figure.subfigures(len(rows), 1, squeeze=False)
    for part, (title, positions) in zip(parts[:, 0], rows.items(), strict=True):
        part.suptitle(title, x=0.01, ha="left", fontsize=10)
        axes = part.subplots(1, PER_ROW)
        for axis in axes:
            axis.axis("off")
        for axis, position in zip(axes, positions, strict=False):
            image = shown_channels(pack.images(np.array([position]))[0])
            axis.imshow(image.squeeze(), cmap="gray_r" if image.shape[2] == 1 else None)
            label, true = int(pack.labels[position]), int(true_labels[position])
            text = pack.classes[label]
            if label != true:
                text += f", is {pack.classes[true]}"
            axis.set_title(
                plain(text), fontsize=9, pad=2, color="black" if label == true else "#b3261e"
            )
    save_figure(figure, path)
