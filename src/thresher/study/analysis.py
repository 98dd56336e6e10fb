"""From finished trials to rows, cells and verdicts: everything a report says, as plain numbers.

Only what tuning chose is reported; every comparison of the study is corrected together.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.paths import RunPaths, read_json
from thresher.study import statistics
from thresher.study.folder import StudyStatus
from thresher.study.study import Study
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.study.tune import Choice, choices, reported_trials

POINTS = ("accuracy", "validation_accuracy")
"""Metrics that are shares of 1 in a result and points (of 100) in a report."""
LOWER_IS_BETTER = ("loss", "time_to_target", "seconds", "train_loss")
UNITS = {"time_to_target": "s", "seconds": "s", "loss": "", "train_loss": ""}
MARGIN_POINTS = 0.3
MARGIN_SHARE = 0.03
COPIED = (
    "status",
    "loss",
    "validation_loss",
    "train_loss",
    "steps",
    "samples",
    "epochs",
    "seconds",
    "images_per_s",
    "noise_scale",
)
FROM_RESOLVED = ("peak_lr", "warmup_epochs", "global_batch", "per_worker_batch", "workers")


@dataclass
class Analysis:
    """What a study found; `to_dict` is what `study report --json` prints."""

    study: Study
    status: StudyStatus
    plan: StudyPlan
    rows: list[dict[str, Any]]
    """A row per trial that is wanted or finished."""
    cells: list[dict[str, Any]]
    """A row per combination of the axes that are not tuned."""
    verdicts: list[dict[str, Any]]
    """The comparisons: over all cells first, then cell by cell."""
    choices: list[Choice]
    metric: str
    unit: str
    margin: float
    higher_is_better: bool
    cost: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return plain(
            {
                "title": self.study.definition.title,
                "metric": self.metric,
                "unit": self.unit,
                "margin": self.margin,
                "complete": self.status.complete,
                "verdicts": self.verdicts,
                "cells": self.cells,
                "choices": [vars(choice) for choice in self.choices],
                "cost": self.cost,
                "trials": self.rows,
            }
        )


def analyse(study: Study) -> Analysis:
    """Read every result of a study and judge it; trials still missing are simply not there."""
    return _Analyst(study).analysis()


class _Analyst:
    def __init__(self, study: Study) -> None:
        self.study, self.definition = study, study.definition
        self.plan = study.plan()
        self.status = study.status()
        self.metric = self.definition.metric
        self.points = self.metric in POINTS
        self.higher = self.metric not in LOWER_IS_BETTER
        self.unit = "points" if self.points else UNITS[self.metric]
        self.free = [axis for axis in self.definition.axes if axis not in self.definition.tune]

    def analysis(self) -> Analysis:
        reported = {task.name for task in reported_trials(self.definition, self.plan)}
        states = {trial.name: trial for trial in self.status.trials}
        rows = [
            {**self.row(task), "state": states[name].state, "error": states[name].error}
            | {"reported": name in reported}
            for name, task in self.plan.trials.items()
            if states[name].state != "not chosen"
        ]
        chosen = choices(self.definition, self.plan)
        cells = self.cells([row for row in rows if row["reported"]], chosen)
        margin = self.margin(cells)
        return Analysis(
            study=self.study,
            status=self.status,
            plan=self.plan,
            rows=rows,
            cells=cells,
            verdicts=self.verdicts(cells, margin),
            choices=chosen,
            metric=self.metric,
            unit=self.unit,
            margin=margin,
            higher_is_better=self.higher,
            cost=self.cost(rows),
        )

    def row(self, task: StudyTask) -> dict[str, Any]:
        assert task.cell is not None
        row: dict[str, Any] = {"trial": task.name, **task.cell, "seed": task.seed}
        paths = RunPaths(task.out)
        result = read_json(paths.result, "run's result") if paths.result.exists() else {}
        resolved = result.get("resolved") or {}
        hardware = result.get("hardware") or {}
        for key in POINTS:
            row[key] = self._points(result, key)
        row |= {key: result.get(key) for key in COPIED}
        reached = result.get("time_to_target")
        row["time_to_target"] = reached.get("seconds") if isinstance(reached, dict) else reached
        row |= {f"resolved_{key}": resolved.get(key) for key in FROM_RESOLVED}
        row["train_samples"] = resolved.get("samples")
        row["device"] = device_name(hardware)
        row["value"] = row[self.metric]
        return row

    def _points(self, result: dict[str, Any], key: str) -> float | None:
        """A run that diverged without an accuracy guesses: chance, not a gap in the data."""
        value = result.get(key)
        if value is None and result.get("status") == "diverged" and key == "accuracy":
            value = 1 / len(self.pack.classes) if self.pack is not None else 0.0
        return 100 * value if value is not None and math.isfinite(value) else None

    @cached_property
    def pack(self) -> Pack | None:
        """The (first) data set, for its classes and the size of its test split."""
        name = self.definition.base.get("data") or self.definition.grid["data"][0]
        try:
            return Pack.open(name)
        except ThresherError:
            return None  # a report may be read where the data is not

    @cached_property
    def resolution(self) -> float:
        """The step in which the metric moves: one test image."""
        if not self.points or self.pack is None:
            return 0.0
        split = "test" if "test" in self.pack.meta.splits else "train"
        return 100.0 / max(1, len(self.pack.indices(split)))

    def cells(self, rows: list[dict[str, Any]], chosen: list[Choice]) -> list[dict[str, Any]]:
        picked = {tuple(choice.cell.values()): choice.chosen for choice in chosen}
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(tuple(row[axis] for axis in self.free), []).append(row)
        cells = []
        for key, members in groups.items():
            finished = [row for row in members if row["state"] == "finished"]
            values = {row["seed"]: row["value"] for row in finished if row["value"] is not None}
            numbers = np.array(list(values.values()), float)
            low, high = statistics.mean_interval(numbers)
            cells.append(
                {
                    **dict(zip(self.free, key, strict=True)),
                    **({"chosen": picked.get(key)} if chosen else {}),
                    "n": len(values),
                    "mean": numbers.mean() if len(numbers) else None,
                    "sd": numbers.std(ddof=1) if len(numbers) > 1 else None,
                    "low": low,
                    "high": high,
                    "values": values,
                    "diverged": sum(row["status"] == "diverged" for row in finished),
                    "missing": len(members) - len(finished),
                    "validation_accuracy": _mean(row["validation_accuracy"] for row in finished),
                    "seconds": _mean(row["seconds"] for row in finished),
                    "time_to_target": _mean(row["time_to_target"] for row in finished),
                    "train_samples": _mean(row["train_samples"] for row in finished),
                }
            )
        return cells

    def margin(self, cells: list[dict[str, Any]]) -> float:
        if self.definition.margin is not None:
            return float(self.definition.margin)
        if self.points:
            return MARGIN_POINTS
        means = [abs(cell["mean"]) for cell in cells if cell["mean"] is not None]
        return MARGIN_SHARE * (sum(means) / len(means)) if means else MARGIN_SHARE

    def verdicts(self, cells: list[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
        axis = self.definition.compared
        if not axis:
            return []
        others = [name for name in self.free if name != axis]
        by_key = {
            (tuple(cell[name] for name in others), cell[axis]): cell["values"] for cell in cells
        }
        places = list(dict.fromkeys(key for key, _ in by_key))
        heads: list[dict[str, Any]] = []
        data: list[statistics.Paired] = []

        def add(cell: dict[str, Any], arm: Any, base: Any, pairs: list[tuple[Any, ...]]) -> None:
            heads.append({"cell": cell, "axis": axis, "arm": arm, "baseline": base})
            numbers = np.array(pairs, float).reshape(-1, 2)
            data.append(
                statistics.paired(
                    numbers[:, 0], numbers[:, 1], margin, self.higher, self.resolution
                )
            )

        for arm, base in self.definition.compared_pairs:
            per_place = []
            for place in places:
                first, second = by_key.get((place, arm), {}), by_key.get((place, base), {})
                both = [seed for seed in first if seed in second]
                per_place.append({seed: (first[seed], second[seed]) for seed in both})
            if len(places) > 1:
                # One number per seed: the mean over all cells, where the seed was run in each.
                seeds = [s for s in self.definition.seeds if all(s in found for found in per_place)]
                means = [tuple(np.mean([found[s] for found in per_place], axis=0)) for s in seeds]
                add({}, arm, base, means)
            for place, found in zip(places, per_place, strict=True):
                cell = dict(zip(others, place, strict=True))
                add(cell, arm, base, [found[seed] for seed in sorted(found)])
        judged = statistics.judge(data, margin, higher_is_better=self.higher)
        verdicts = [
            {**head, **self.spoken(head, verdict, len(places) > 1)}
            for head, verdict in zip(heads, judged, strict=True)
        ]
        return sorted(verdicts, key=lambda verdict: bool(verdict["cell"]))

    def spoken(
        self, head: dict[str, Any], verdict: statistics.Verdict, several: bool
    ) -> dict[str, Any]:
        arm, base = (self.arm_name(head["axis"], head[key]) for key in ("arm", "baseline"))
        text = statistics.sentence(verdict, arm, base, self.unit or self.metric)
        if head["cell"]:
            text = f"At {spoken_cell(head['cell'])}: {text}"
        elif several:
            text = f"Over all cells: {text}"
        low, high = verdict.paired.interval
        boot_low, boot_high = verdict.paired.bootstrap
        return {
            "verdict": verdict.word,
            "sentence": text,
            "n": verdict.paired.n,
            "difference": verdict.paired.mean,
            "low": low,
            "high": high,
            "bootstrap_low": boot_low,
            "bootstrap_high": boot_high,
            "p": verdict.paired.p,
            "p_holm": verdict.p,
            "p_equivalent": verdict.p_equivalent,
            "no_worse": verdict.no_worse,
            "seeds_needed": verdict.seeds_needed,
            "seeds_if_as_seen": verdict.seeds_if_as_seen,
            "comparisons": verdict.family,
        }

    def arm_name(self, axis: str, value: Any) -> str:
        return str(value) if axis in ("selection", "arm", "model") else f"{axis} {value}"

    def cost(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        done = [row for row in rows if row["seconds"] is not None]
        steps = [
            read_json(RunPaths(step.out).result, "run's result")
            for step in self.plan.steps.values()
            if step.kind == "train" and step.finished
        ]
        device_seconds = sum(row["seconds"] * (row["resolved_workers"] or 1) for row in done)
        step_seconds = sum(result.get("seconds") or 0.0 for result in steps)
        return {
            "trials": len(done),
            "device_hours": (device_seconds + step_seconds) / 3600,
            "images": sum(row["samples"] or 0 for row in done)
            + sum(result.get("samples") or 0 for result in steps),
            "devices": sorted({row["device"] for row in done if row["device"]}),
            "mean_trial_seconds": _mean(row["seconds"] for row in done),
        }


def spoken_cell(cell: dict[str, Any]) -> str:
    """`batch size 1,024, lr 0.1`."""

    def value(v: Any) -> str:
        return f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v)

    return ", ".join(f"{axis.replace('_', ' ')} {value(v)}" for axis, v in cell.items())


def device_name(hardware: dict[str, Any]) -> str:
    """A short name of what a run ran on."""
    for key in ("gpu", "processor", "cpu", "system"):
        value = hardware.get(key)
        if value:
            return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return ""


def preferred_batches(analysis: Analysis) -> list[dict[str, Any]]:
    """For each value of the other axes, the batch size with the best mean, and those that are as
    good within the margin; [] where the batch does not vary.

    Validation accuracy chooses where there is one; the test accuracy is what is shown.
    """
    if "batch_size" not in analysis.study.definition.grid:
        return []
    sign = 1 if analysis.higher_is_better else -1
    others = [a for a in analysis.study.definition.axes if a != "batch_size"]
    others = [a for a in others if a not in analysis.study.definition.tune]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in analysis.cells:
        if cell["mean"] is not None:
            groups.setdefault(tuple(cell[axis] for axis in others), []).append(cell)
    found = []
    for values, members in groups.items():
        held_out = all(m["validation_accuracy"] is not None for m in members)
        by = "validation_accuracy" if held_out and analysis.higher_is_better else "mean"
        best = max(members, key=lambda m: sign * m[by])
        near = [m for m in members if sign * (best[by] - m[by]) <= analysis.margin]
        found.append(
            {
                **dict(zip(others, values, strict=True)),
                "preferred": best["batch_size"],
                "mean": best["mean"],
                "as_good": sorted(m["batch_size"] for m in near),
                "chosen_by": "validation" if by == "validation_accuracy" else "test",
            }
        )
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def plain(value: Any) -> Any:
    """For JSON: numpy numbers as Python's, infinities and nan as null, keys as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
