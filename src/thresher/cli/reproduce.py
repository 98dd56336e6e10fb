"""`thresher reproduce`: run a claim of the papers, or list them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.recipes.base import Preset


@dataclass(frozen=True)
class Reproduce:
    name: Annotated[str, tyro.conf.Positional] = ""
    """The recipe; without one, list them all."""
    preset: Preset = "smoke"
    """How large: smoke (minutes on a laptop), gpu (one GPU) or paper (the paper's own size)."""
    out: Path | None = None
    """Folder for runs, figures and recipe.json (default: runs/NAME-PRESET)."""


def reproduce(config: Reproduce) -> Outcome:
    """Run a claim of the papers and print what the paper says, what came out here, and whether it
    holds. Without a name, list the recipes. A recipe that was interrupted goes on where it was.
    """
    from thresher.recipes import all_recipes, find

    if not config.name:
        return _listing(all_recipes())
    recipe = find(config.name)
    out = config.out or Path("runs") / f"{recipe.name}-{config.preset}"
    ensure_pack(recipe.data.get(config.preset))
    result = recipe.run(config.preset, out)
    head = {"name": recipe.name, "claim": recipe.claim, "preset": config.preset, "out": str(out)}
    return Outcome({**result.data, **head, "rows": result.rows}, _table(recipe.title, result.rows))


def _listing(recipes: list[Any]) -> Outcome:
    rows = [
        {"name": r.name, "claim": r.claim, "title": r.title, "presets": list(r.presets)}
        for r in recipes
    ]
    text = columns(
        "Claims of the papers that can be run",
        ("recipe", "claim", "presets", "what it tests"),
        [(r["name"], r["claim"], ", ".join(r["presets"]), r["title"]) for r in rows],
    )
    return Outcome({"recipes": rows}, text)


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    keys = ("claim", "paper", "measured", "interval", "holds")
    table = columns(
        title,
        ("claim", "the paper says", "we measured", "interval", "holds?"),
        [tuple(str(line[key]) for key in keys) for line in rows],
    )
    notes = [f"{line['paper']} – {line['note']}." for line in rows if line["note"]]
    return "\n".join([table, *(["", *notes] if notes else [])])
