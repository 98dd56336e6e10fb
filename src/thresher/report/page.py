"""The report of a study: one self-contained HTML file, verdicts first.

Figures are inline SVG and styles inline CSS; there are no scripts, fonts or requests. The page
follows the reader's light or dark setting, reads in one column on a phone, and prints in black on
white.
"""

import html
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thresher.auditing.findings import Audit
from thresher.errors import InvalidValueError, check_type, counted
from thresher.paths import StudyPaths, as_path, write_json, write_text
from thresher.report import tables
from thresher.report.audit_page import write_audit_page
from thresher.report.drawing import Drawing, inline
from thresher.report.figures import draw_all
from thresher.report.style import html_page
from thresher.report.work import class_table, work_table
from thresher.study.analysis import Analysis, analyse
from thresher.study.comparisons import ArmComparison
from thresher.study.guessing import LOSSES
from thresher.study.reported import POINTS
from thresher.study.sentences import OVERALL
from thresher.study.study import Study


def write_report(
    study: Study | Analysis | Audit | Path | str, out: Path | str | None = None
) -> Path:
    """Write the report of a study (HTML page, figures, table of trials) or the page of an audit.

    Writes `index.html`, and for a study `figures/*.svg` and `*.png`, `trials.parquet` and
    `report.json`.

    Args:
        study: A study, its folder, the result of `analyse`, or the result of `audit`.
        out: Folder to write to; default: `report` in the study's folder, or the audit's folder.

    Returns:
        The path of `index.html`.

    Example:
        >>> from thresher import analyse, write_report
        >>> from thresher.study.results import Trial
        >>> trials = [
        ...     Trial(cell={"lr": lr}, seed=seed, value=90 + 10 * lr + 0.01 * seed * lr)
        ...     for lr in (0.1, 0.2)
        ...     for seed in range(3)
        ... ]
        >>> page = write_report(analyse(trials), "report")
        >>> page.name, (page.parent / "figures" / "accuracy-lr.svg").exists()
        ('index.html', True)
    """
    what = "a study, its folder, or the result of `analyse` or `audit`"
    check_type(study, (Audit, Analysis, Study, str, Path, Sequence), "study", what)
    if isinstance(study, Audit):
        return write_audit_page(study, out)
    analysis = study if isinstance(study, Analysis) else analyse(study)
    if out is None and analysis.study is None:
        raise InvalidValueError("out is required for a report of trials", "", "out")
    folder = as_path(out, "out") if out is not None else StudyPaths(analysis.study.root).report  # type: ignore[union-attr]
    drawings = draw_all(analysis)
    for drawing in drawings:
        drawing.save(folder / "figures")
    tables.write_parquet(analysis, folder / "trials.parquet")
    write_json(folder / "report.json", analysis.to_dict())
    page = folder / "index.html"
    write_text(page, render(analysis, drawings))
    return page


def render(analysis: Analysis, drawings: list[Drawing]) -> str:
    """Return the page as text."""
    title = analysis.title or (analysis.study.root.name if analysis.study else "Comparison")
    setup = _setup(analysis)
    parts = [
        f"<header><h1>{html.escape(title)}</h1><p class='sub'>{_summary(analysis)}</p></header>",
        _warnings(analysis),
        _section("Verdict", _verdicts(analysis)),
        _figures(drawings),
        _section("Means", tables.cell_table(analysis)) if analysis.cells else "",
        _work(analysis),
        _tuning(analysis),
        _section("Options, versions and hardware", setup) if setup else "",
        _section("Cost", _cost(analysis)) if analysis.cost.trials else "",
        _details(f"All {counted(len(analysis.trials), 'trial')}", tables.trial_table(analysis)),
        _details("How the verdicts are computed", _method(analysis)),
    ]
    return html_page(html.escape(title), parts)


def _summary(analysis: Analysis) -> str:
    states = [trial.state for trial in analysis.trials]
    seeds = counted(len({trial.seed for trial in analysis.trials}), "seed")
    facts = [
        f"{states.count('finished')} of {counted(len(states), 'trial')} finished",
        f"{counted(len(analysis.cells), 'setting')} × {seeds}",
        analysis.metric.replace("_", " "),
        ", ".join(analysis.cost.devices),
        time.strftime("%Y-%m-%d %H:%M"),
    ]
    return html.escape(" · ".join(filter(None, facts)))


def _warnings(analysis: Analysis) -> str:
    states = [trial.state for trial in analysis.trials]
    missing = sum(states.count(state) for state in ("waiting", "queued", "running"))
    diverged = sum(cell.diverged for cell in analysis.cells)
    texts = []
    if missing:
        texts.append(f"{counted(missing, 'trial')} not finished: the verdicts are provisional.")
    if states.count("failed"):
        texts.append(
            f"{counted(states.count('failed'), 'trial')} failed and left out; run them again with "
            "<code>thresher study run … --retry</code>."
        )
    if diverged:
        how = ""
        if analysis.metric in (*POINTS, *LOSSES):
            name = analysis.metric.replace("_", " ")
            how = f": counted with the last {name}, or as guessing if there is none"
        texts.append(f"{counted(diverged, 'run')} diverged{how}.")
    texts += [html.escape(note) for note in analysis.notes]
    return "".join(f'<p class="warning">{text}</p>' for text in texts)


def _verdicts(analysis: Analysis) -> str:
    if not analysis.verdicts:
        return "<p>No axis of the study has two values, so there is nothing to compare.</p>"
    cards = "".join(
        f'<div class="card {c.verdict.split()[0]}">{tables.badge(c.verdict)}'
        f"<p>{html.escape(_headline(c))}</p></div>"
        for c in analysis.headlines
    )
    more = ""
    words = [c.verdict for c in analysis.verdicts if c not in analysis.overall]
    if words:
        counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        more = f"<h3>Each setting: {html.escape(counts)}</h3>{tables.verdict_table(analysis)}"
    return f'<div class="cards">{cards}</div>{more}'


def _headline(comparison: ArmComparison) -> str:
    text = comparison.sentence.removeprefix(f"{OVERALL}: ")
    family = {True: "Primary: ", False: "Exploratory: ", None: ""}
    return family[comparison.primary] + text


def _figures(drawings: list[Drawing]) -> str:
    if not drawings:
        return ""
    items = "".join(
        f"<figure><h3>{html.escape(d.title)}</h3>{inline(d.svg)}"
        f"<figcaption>{html.escape(d.caption)}</figcaption></figure>"
        for d in drawings
    )
    return _section("Figures", f'<div class="figures">{items}</div>')


def _work(analysis: Analysis) -> str:
    work, classes = work_table(analysis), class_table(analysis)
    if classes:
        classes = f"<h3>Training images of each class</h3>{classes}"
    return _section("Work of each arm", work + classes) if work else ""


def _tuning(analysis: Analysis) -> str:
    if not analysis.choices:
        return ""
    tuned = html.escape(", ".join(analysis.tuned))
    return _section(
        "Tuning",
        f"<p>For each setting, the value of {tuned} with the best mean accuracy on the validation "
        "split was chosen. The test set was not used.</p>" + tables.choice_table(analysis),
    )


def _setup(analysis: Analysis) -> str:
    rows: list[list[Any]] = []
    if analysis.study is not None:
        study = analysis.study.definition
        rows += [[key, _value(value)] for key, value in study.base.items()]
        rows += [[key, " · ".join(map(_value, values))] for key, values in study.grid.items()]
        for name, arm in study.arms.items():
            rows.append([f"arm “{name}”", _options(arm)])
        rows.append(["seeds", " · ".join(map(str, study.seeds))])
    for step in analysis.plan.steps.values() if analysis.plan is not None else ():
        named = {k: v for k, v in step.settings.items() if not (isinstance(v, str) and "/" in v)}
        options = _options({k: v for k, v in named.items() if k not in step.at})
        each = f", for each {' and '.join(step.at)}" if step.at else ""
        row = [f"step “{step.step}”", f"{step.kind}: {options}{each}"]
        rows += [row] if row not in rows else []
    seen: dict[str, dict[str, None]] = {}
    for trial in analysis.trials:
        for key, value in trial.made_with.items():
            seen.setdefault(key, {})[value] = None
    made_with = [[key, " · ".join(values)] for key, values in seen.items()]
    return "".join(
        tables.html_table(heads, table, wrap=True)
        for heads, table in ((["option", "value"], rows), (["made with", "value"], made_with))
        if table
    )


def _options(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    """Return a value as in a study file, but text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cost(analysis: Analysis) -> str:
    cost = analysis.cost
    hours = cost.device_hours
    units = (("hours", 1), ("minutes", 60), ("seconds", 3600))
    unit, each_hour = next((unit for unit in units if hours * unit[1] >= 1), units[-1])
    spent = f"{hours * each_hour:.1f} device {unit}"
    mean = cost.mean_trial_seconds
    each = f", {mean:,.1f} s per trial on average" if mean is not None else ""
    # Commands do not say on how many images they train.
    images = f", and trained on {cost.images:,.0f} images" if cost.images else ""
    steps = analysis.plan is not None and analysis.plan.steps
    included = ", with the steps before them," if steps else ""
    return (
        f"<p>{counted(cost.trials, 'trial')}{included} took {spent}{each}{images}. Time on a "
        "shared device is counted in full for each trial.</p>"
    )


def _method(analysis: Analysis) -> str:
    margin = html.escape(f"{analysis.margin:g} {analysis.unit or analysis.metric}")
    resolution = f"{analysis.resolution:.6g} {analysis.unit}".strip()
    claim = (
        "<b>Excludes the claimed effect</b>: a one-sided test shows a smaller effect than claimed. "
        if any(c.claimed is not None for c in analysis.verdicts)
        else ""
    )
    primary = sum(bool(c.primary) for c in analysis.verdicts)
    count = len(analysis.verdicts)
    family = f"the {count:,} comparisons of this study"
    if primary:
        family = (
            f"the {primary} primary comparisons among themselves, and for all {count:,} "
            "comparisons otherwise (exploratory)"
        )
    corrected = f"The p-values are corrected by Holm’s method for {family}, and"
    if count == 1:
        corrected = "One comparison needs no correction;"
    texts = [
        "Two arms are compared by the differences between runs with the same seed: their mean, "
        "divided by its standard error sd / √seeds, is tested by Student’s t.",
        "<b>sd</b> is √2 times the standard deviation of a run. In each setting, arms × seeds is a "
        "two-way layout: the squares of what is left after subtracting the means of each arm and "
        "each seed, divided by (arms − 1)(seeds − 1), are the variance of a run (plus the "
        f"metric’s resolution² / 12; the resolution is {resolution}). It is averaged "
        "over the settings. A setting with more spread "
        "than the others has the mean of its own variance and that of the others, or its own only "
        "if an F-test finds it larger; a pair of arms with more spread than the others is judged "
        "without them. Errors that settings have in common reduce the degrees of freedom "
        "(Satterthwaite). Where that leaves nothing to pool, sd² is the variance of the "
        "differences plus resolution² / 6.",
        "For all settings together, the values are first averaged over settings, seed by seed. "
        "Seeds that share a draw of a random step are averaged first and count as one.",
        f"{corrected} {analysis.level:g} is the threshold of the p-values. "
        "<b>Better</b> and <b>worse</b>: the mean differs from 0. <b>Equivalent</b>: two one-sided "
        f"tests show a difference smaller than the margin of {margin}. {claim}<b>No worse</b>: a "
        "one-sided test shows that the arm is not worse by the margin or more. Otherwise <b>not "
        "enough runs</b>, with the seeds that detect a difference as large as the margin with "
        "80 % probability, and their range, because sd itself is known with an error (χ²).",
        "95 % intervals are Student intervals; for eight or more seeds without pooling, bootstrap "
        "intervals. Those of accuracies are shown up to 0 and 100 %. Adjusted intervals have the "
        "level that Holm’s method leaves to the comparison, "
        f"1 − {analysis.level:g} · p / p (Holm), and contain 0 exactly if the verdict is neither "
        "better nor worse. At most 5 % of studies without any effect report one"
        + (" among their primary comparisons." if primary else "."),
        "All numbers follow from the columns value, seed and those of the settings in "
        "<code>trials.parquet</code>, rows with reported = true. <code>report.json</code> holds "
        "mean, sd, degrees of freedom and p of every comparison with all digits; "
        "<code>tests/report/test_recompute.py</code> of Thresher recomputes them with numpy and "
        "scipy.",
    ]
    return "".join(f"<p>{text}</p>" for text in texts)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>"
