"""The report of a study: one HTML file that needs nothing else, verdict first.

Figures are inline SVG, styles inline CSS; no script, no font, no request. It follows the reader's
light or dark setting, reads in one column on a phone, and prints in black on white.
"""

import html
import time
from pathlib import Path
from typing import Any

from thresher.paths import RunPaths, StudyPaths, read_json, write_json, write_text
from thresher.report import tables
from thresher.report.figures import Drawing, draw_all, inline
from thresher.report.style import CSS
from thresher.study.analysis import Analysis, plain


def write_report(analysis: Analysis, folder: Path | None = None) -> Path:
    """Write index.html, figures/*.svg and *.png, trials.parquet and report.json; give the page."""
    folder = StudyPaths(analysis.study.root).report if folder is None else folder
    drawings = draw_all(analysis)
    for drawing in drawings:
        drawing.save(folder / "figures")
    tables.write_parquet(analysis, folder / "trials.parquet")
    write_json(folder / "report.json", analysis.to_dict())
    page = folder / "index.html"
    write_text(page, render(analysis, drawings))
    return page


def render(analysis: Analysis, drawings: list[Drawing]) -> str:
    """The whole page as text."""
    title = analysis.study.definition.title or analysis.study.root.name
    parts = [
        f"<header><h1>{html.escape(title)}</h1><p class='sub'>{_summary(analysis)}</p></header>",
        _warnings(analysis),
        _section("Verdict", _verdicts(analysis)),
        _figures(drawings),
        _section("Every cell", tables.cell_table(analysis)) if analysis.cells else "",
        _chosen(analysis),
        _section("What was run, and on what", _what_was_run(analysis)),
        _section("What it cost", _cost(analysis)),
        _details(f"All {len(analysis.rows)} trials", tables.trial_table(analysis)),
        _details("How the verdicts are made", _method(analysis)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _summary(analysis: Analysis) -> str:
    status = analysis.status
    seeds = len(analysis.study.definition.seeds)
    done, total = status.count("finished"), len(status.trials) - status.count("not chosen")
    devices = ", ".join(analysis.cost["devices"]) or "unknown hardware"
    return html.escape(
        f"{done} of {total} trials finished · {len(analysis.cells)} cells × {seeds} seeds · "
        f"{analysis.metric.replace('_', ' ')} · {devices} · {time.strftime('%Y-%m-%d %H:%M')}"
    )


def _warnings(analysis: Analysis) -> str:
    status = analysis.status
    missing = status.count("waiting") + status.count("running")
    words = []
    if missing:
        words.append(f"{missing} trials are not finished: the verdicts below are provisional.")
    if status.count("failed"):
        words.append(
            f"{status.count('failed')} trials failed and are left out; "
            "<code>thresher study run … --retry</code> tries them again."
        )
    diverged = sum(cell["diverged"] for cell in analysis.cells)
    if diverged:
        words.append(
            f"{diverged} runs diverged; they count with the accuracy they ended with, or chance."
        )
    return "".join(f'<p class="warning">{word}</p>' for word in words)


def _verdicts(analysis: Analysis) -> str:
    if not analysis.verdicts:
        return "<p>Nothing is compared: no axis of the study has two values.</p>"
    overall = [v for v in analysis.verdicts if not v["cell"]]
    cards = "".join(
        f'<div class="card {v["verdict"].split()[0]}">{tables.badge(v["verdict"])}'
        f"<p>{html.escape(v['sentence'].removeprefix('Over all cells: '))}</p></div>"
        for v in overall or analysis.verdicts
    )
    more = ""
    if len(analysis.verdicts) > len(overall):
        words = [v["verdict"] for v in analysis.verdicts if v["cell"]]
        counts = ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))
        heading = f"<h3>Cell by cell: {html.escape(counts)}</h3>" if overall and words else ""
        more = heading + tables.verdict_table(analysis) if overall else ""
    return f'<div class="cards">{cards}</div>{more}'


def _figures(drawings: list[Drawing]) -> str:
    if not drawings:
        return ""
    items = "".join(
        f"<figure><h3>{html.escape(d.title)}</h3>{inline(d.svg)}"
        f"<figcaption>{html.escape(d.caption)}</figcaption></figure>"
        for d in drawings
    )
    return _section("Figures", f'<div class="figures">{items}</div>')


def _chosen(analysis: Analysis) -> str:
    if not analysis.choices:
        return ""
    tuned = ", ".join(analysis.study.definition.tune)
    return _section(
        "What tuning chose",
        f"<p>{html.escape(tuned)}: chosen per cell by the mean accuracy on the validation split. "
        "The test set had no part in it.</p>" + tables.choice_table(analysis),
    )


def _what_was_run(analysis: Analysis) -> str:
    definition = analysis.study.definition
    rows: list[list[Any]] = [[key, value] for key, value in definition.base.items()]
    rows += [[key, " · ".join(map(str, values))] for key, values in definition.grid.items()]
    rows += [
        [f"arm “{name}”", ", ".join(f"{k} {v}" for k, v in arm.items())]
        for name, arm in definition.arms.items()
    ]
    rows.append(["seeds", " · ".join(map(str, definition.seeds))])
    for step in analysis.plan.steps.values():
        rows.append([f"step “{step.step}”", _step(step.settings, step.kind)])
    settings = tables.html_table(["setting", "value"], rows, wrap=True)
    made = _provenance(analysis)
    return settings + (tables.html_table(["made with", ""], made, wrap=True) if made else "")


def _step(settings: dict[str, Any], kind: str) -> str:
    shown = {k: v for k, v in settings.items() if not (isinstance(v, str) and "/" in v)}
    return f"{kind}: " + ", ".join(f"{k} {v}" for k, v in shown.items())


def _provenance(analysis: Analysis) -> list[list[Any]]:
    """Versions, hardware and commit, of every different kind that the trials name."""
    found: dict[str, dict[str, None]] = {}
    for task in analysis.plan.trials.values():
        if not task.finished:
            continue
        result = read_json(RunPaths(task.out).result, "run's result")
        for group in ("versions", "hardware"):
            for key, value in (result.get(group) or {}).items():
                found.setdefault(key, {})[str(plain(value))] = None
        if result.get("git_commit"):
            found.setdefault("git commit", {})[str(result["git_commit"])[:12]] = None
    return [[key, " · ".join(values)] for key, values in found.items()]


def _cost(analysis: Analysis) -> str:
    cost = analysis.cost
    hours = cost["device_hours"]
    spent = f"{hours:.1f} device hours" if hours >= 1 else f"{60 * hours:.1f} device minutes"
    mean = cost["mean_trial_seconds"]
    each = f", {mean:,.1f} s per trial in the mean" if mean is not None else ""
    where = f" on {', '.join(cost['devices'])}" if cost["devices"] else ""
    return (
        f"<p>{cost['trials']} trials took {spent}{html.escape(where)}{each}; "
        f"{cost['images']:,.0f} images were trained on, the steps before the trials included. "
        "Trials that share a device are each counted in full.</p>"
    )


def _method(analysis: Analysis) -> str:
    family = len(analysis.verdicts)
    margin = f"{analysis.margin:g} {analysis.unit or analysis.metric}"
    return (
        "<p>Two arms are compared by the differences of runs with the same seed. A difference "
        "counts when a paired t-test, corrected for all "
        f"{family} comparisons of this study (Holm), says so; equivalence when two one-sided "
        f"tests, corrected likewise, put the difference inside ±{html.escape(margin)}. All else "
        "is “not enough runs”, with the number of seeds that would show a difference of the size "
        "of the margin four times in five. Intervals are bootstrap intervals from eight seeds on "
        "and Student intervals below, where a bootstrap promises too much. At most one in twenty "
        "studies without any effect is told that there is one.</p>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>"
