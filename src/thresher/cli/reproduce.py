"""`thresher reproduce`: run a claim of the papers, or list them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.options import option
from thresher.recipes.base import ClaimRow, Preset, Recipe
from thresher.startup import quick_scipy


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    name: str | None = option(None, positional=True)
    """The recipe (default: list all recipes)."""
    preset: Preset = "smoke"
    """Size: smoke (minutes on a laptop), gpu (one GPU) or paper (the paper's own size)."""
    out: Path | None = None
    """Folder for runs, figures and recipe.json (default: runs/NAME-PRESET)."""
    table: Path | None = None
    """A TOML file with further rows, for a recipe that has a table (jitsev-records)."""


def reproduce(config: Reproduce) -> Outcome:
    """Run a claim of the papers and print what the paper says, what was measured, and whether the
    claim holds. Without a name, list the recipes. An interrupted recipe resumes.
    """
    quick_scipy()
    from thresher.recipes import all_recipes, find, stored_verdicts

    if config.name is None:
        return _listing(all_recipes(), stored_verdicts())
    recipe = find(config.name)
    out = config.out or Path("runs") / f"{recipe.name}-{config.preset}"
    ensure_pack(recipe.data.get(config.preset))
    result = recipe.run(config.preset, out, config.table)
    head = {"name": recipe.name, "claim": recipe.claim, "preset": config.preset, "out": str(out)}
    rows = [row.to_dict() for row in result.rows]
    text = f"{_table(recipe.title, result.rows)}\n\nThe results are in {out}"
    return Outcome({**result.data, **head, "rows": rows}, text)


def _listing(recipes: Sequence[Recipe], verdicts: Mapping[str, dict[str, int]]) -> Outcome:
    rows = [
        {
            **{"name": r.name, "claim": r.claim, "title": r.title, "presets": list(r.presets)},
            "stored": verdicts.get(r.name),
        }
        for r in recipes
    ]
    text = columns(
        "Claims of the papers, and the verdicts of the stored runs (docs/claims.md)",
        "recipe|claim|presets|holds?|what it tests",
        [
            (r.name, r.claim, ", ".join(r.presets), _counts(verdicts.get(r.name)), r.title)
            for r in recipes
        ],
    )
    return Outcome({"recipes": rows}, text)


def _counts(verdicts: dict[str, int] | None) -> str:
    """Format the verdicts of a recipe's rows; a recipe without a stored run has none."""
    if verdicts is None:
        return "not run"
    if len(verdicts) == 1:
        return next(iter(verdicts))
    return ", ".join(f"{word} ({count})" for word, count in sorted(verdicts.items()))


def _table(title: str, rows: Sequence[ClaimRow]) -> str:
    table = columns(
        title,
        "claim|the paper says|we measured|interval|holds?",
        [(row.claim, row.paper, row.measured, row.interval, row.holds) for row in rows],
    )
    notes = [f"{row.paper} – {row.note.rstrip('.')}." for row in rows if row.note]
    differs = dict.fromkeys(row.differs for row in rows if row.differs)
    notes += [f"Differs from the paper in: {text}." for text in differs]
    return "\n".join([table, *(["", *notes] if notes else [])])
