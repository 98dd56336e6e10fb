"""What each arm of a study trained on: images, steps, samples and class counts."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.report.tables import html_table
from thresher.study.analysis import Analysis
from thresher.study.definition import FULL
from thresher.study.results import Trial
from thresher.study.summaries import format_value
from thresher.training.split import DataConfig, split_samples

MOST_CLASSES = 20
"""With more classes the table shows the smallest and the largest only."""


def work_table(analysis: Analysis) -> str:
    """Return a row per cell: training images, optimizer steps and samples seen by each run."""
    rows: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in analysis.trials:
        if trial.reported and trial.steps is not None:
            rows.setdefault(tuple(trial.cell[a] for a in analysis.axes), []).append(trial)
    if not rows:
        return ""
    heads = [axis.replace("_", " ") for axis in analysis.axes]
    first = len(heads)
    heads += ["training images", "steps", "samples seen", "passes"]
    body = [
        [
            *map(format_value, cell),
            _range(t.train_samples for t in trials),
            _range(t.steps for t in trials),
            _range(t.samples for t in trials),
            _range(t.samples / t.train_samples for t in trials if t.samples and t.train_samples),
        ]
        for cell, trials in rows.items()
    ]
    return html_table(heads, body, numbers=range(first, len(heads)))


def class_table(analysis: Analysis) -> str:
    """Return a row per selection: training images of each class, over the draws of that arm."""
    counts = class_counts(analysis)
    classes = list(
        dict.fromkeys(name for draws in counts.values() for one in draws for name in one)
    )
    if not classes:
        return ""
    heads = ["selection", "draws", *classes]
    if len(classes) > MOST_CLASSES:
        heads = ["selection", "draws", "smallest class", "largest class"]
    body = []
    for arm, draws in counts.items():
        numbers = [_range(one.get(name, 0) for one in draws) for name in classes]
        if len(classes) > MOST_CLASSES:
            numbers = [_range(end(one.values()) for one in draws) for end in (min, max)]
        body.append([arm, len(draws), *numbers])
    return html_table(heads, body, numbers=range(1, len(heads)))


def class_counts(analysis: Analysis) -> dict[str, list[dict[str, int]]]:
    """Return the training images of each class, by selection and by draw.

    "full" needs the data set; without it only the filtered arms are counted. Selections that are
    not written yet are left out.
    """
    if analysis.plan is None:
        return {}
    counts: dict[str, list[dict[str, int]]] = {}
    names = {str(step.out): step.step for step in analysis.plan.steps.values()}
    keys = [field.name for field in fields(DataConfig) if field.name != "seed"]
    configs = [
        DataConfig(**{key: trial.settings[key] for key in keys if key in trial.settings})
        for trial in analysis.plan.trials.values()
        if "data" in trial.settings
    ]
    for config in dict.fromkeys(configs):
        try:
            labels, classes = _labels(config)
        except ThresherError:
            continue
        # A class of which nothing is left counts, too, if the data says that there is one.
        numbers = np.bincount(labels, minlength=len(classes)).tolist()
        draw = {
            classes[label] if label < len(classes) else str(label): count
            for label, count in enumerate(numbers)
            if count or label < len(classes)
        }
        arm = FULL if config.selection is None else names.get(config.selection, config.selection)
        counts.setdefault(arm, []).append(draw)
    return counts


def _labels(config: DataConfig) -> tuple[np.ndarray, Sequence[str]]:
    """Return the labels of the samples that a run trains on, (n,) int64, and the class names."""
    try:
        pack = Pack.open(config.data)
    except ThresherError:
        if config.selection is None:
            raise
        selection = Selection.load(config.selection)
        return selection.final_labels[selection.keep], []
    split = split_samples(config, pack)
    labels = pack.labels[split.train] if split.labels is None else split.labels
    return labels[split.kept], pack.classes


def _range(values: Iterable[float | None]) -> str:
    """Format numbers that should be equal: one number, or the smallest and the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    texts = [f"{v:,}" if isinstance(v, int) else f"{v:,.2f}" for v in (min(known), max(known))]
    return " … ".join(dict.fromkeys(texts))
