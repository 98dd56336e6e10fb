"""What a recipe is: a claim of the papers, run at one of several sizes, and what came out."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from thresher.errors import ThresherError, nearest
from thresher.paths import write_json

Preset = Literal["smoke", "gpu", "paper"]
PRESETS: tuple[Preset, ...] = ("smoke", "gpu", "paper")
VERDICTS = ("yes", "no", "partly", "not enough runs")


def row(
    claim: str,
    paper: str,
    measured: str,
    holds: str,
    interval: str = "",
    note: str = "",
    **more: Any,
) -> dict[str, Any]:
    """One line of "the paper says / we measured / holds?"; `more` is for machines only."""
    if holds not in VERDICTS:
        raise ValueError(f"holds must be one of {VERDICTS}, not {holds!r}")
    return {
        "claim": claim,
        "paper": paper,
        "measured": measured,
        "interval": interval,
        "holds": holds,
        "note": note,
        **more,
    }


@dataclass
class RecipeResult:
    """What a recipe found: `rows` made by `row`, and `data` for machines."""

    rows: list[dict[str, Any]]
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A claim that can be run.

    `presets` maps smoke (minutes on a laptop), gpu (one GPU) and paper (the paper's own size) to
    a function of the folder to write to. A recipe offers those it can honour, smoke always.
    """

    name: str
    claim: str
    title: str
    presets: dict[str, Callable[[Path], RecipeResult]]
    data: Mapping[str, str] = field(default_factory=dict)
    """Per preset, the pack that it reads, for those that read one."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ValueError(f"a recipe's name is words joined by dashes, not {self.name!r}")
        unknown = set(self.presets) - set(PRESETS)
        if unknown or "smoke" not in self.presets:
            raise ValueError(f"{self.name}: presets are among {PRESETS}, with smoke")

    def run(self, preset: str, out: Path) -> RecipeResult:
        """Run at one size; the result is written to `out`/recipe.json as well."""
        if preset not in self.presets:
            raise ThresherError(
                f'the recipe {self.name} has no preset "{preset}"', nearest(preset, self.presets)
            )
        result = self.presets[preset](out)
        write_json(
            out / "recipe.json",
            {"name": self.name, "claim": self.claim, "preset": preset, **_merged(result)},
        )
        return result


def _merged(result: RecipeResult) -> dict[str, Any]:
    return {"rows": result.rows, "data": result.data}
