"""A recipe: a claim of the papers, run at one of several sizes, and its result."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from thresher.environment import choose_device, git_commit, hardware, versions
from thresher.errors import InvalidValueError, nearest
from thresher.paths import write_json
from thresher.recipes.support.differences import PaperSettings

Preset = Literal["smoke", "gpu", "paper"]
Verdict = Literal["yes", "no", "partly", "not enough runs"]


@dataclass(frozen=True)
class ClaimRow:
    """One line of the table "the paper says / we measured / holds?"."""

    claim: str
    paper: str
    measured: str
    holds: Verdict
    interval: str = ""
    note: str = ""
    values: dict[str, object] = field(default_factory=dict)
    """Further keys of the row in JSON."""
    differs: str = ""
    """What was done differently from the paper; set by the recipe."""

    def __post_init__(self) -> None:
        if self.holds not in get_args(Verdict):
            raise ValueError(f"holds must be one of {get_args(Verdict)}, got {self.holds!r}")

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON values, with `values` at the same level."""
        fields = asdict(self)
        values = fields.pop("values")
        if not self.differs:
            del fields["differs"]
        return {**fields, **values}


@dataclass(frozen=True)
class RecipeResult:
    """Result of a recipe: rows for people, and further data."""

    rows: list[ClaimRow]
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A claim that can be run."""

    name: str
    """Words joined by dashes."""
    claim: str
    """The claim's number."""
    title: str
    presets: dict[str, Callable[[Path], RecipeResult]]
    """By preset, a function of the output folder: smoke (minutes on a laptop; always there), gpu
    (one GPU) and paper (the paper's own size)."""
    data: Mapping[str, str] = field(default_factory=dict)
    """By preset, the pack that it reads, if any."""
    paper: PaperSettings | None = None
    """What was published, to say how each preset differs from it."""
    with_table: Callable[[Path, Path], RecipeResult] | None = None
    """A function of the output folder and a TOML file with further rows, for a recipe that has a
    table of rows."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ValueError(f"name must be words joined by dashes, got {self.name!r}")
        unknown = set(self.presets) - set(get_args(Preset))
        if unknown or "smoke" not in self.presets:
            raise ValueError(f"{self.name}: presets must be of {get_args(Preset)}, with smoke")

    def run(self, preset: str, out: Path, table: Path | None = None) -> RecipeResult:
        """Run at one size, and write the result to `out`/recipe.json.

        `table` is a TOML file with further rows, for a recipe that takes one.
        """
        if preset not in self.presets:
            raise InvalidValueError(
                f'recipe {self.name} has no preset "{preset}"', nearest(preset, self.presets)
            )
        if table is None:
            result = self.presets[preset](out)
        elif self.with_table is None:
            raise InvalidValueError(f"recipe {self.name} takes no `table`", "leave it out")
        else:
            result = self.with_table(out, table)
        if self.paper is not None:
            differs = self.paper.differs(preset)
            rows = [replace(row, differs=row.differs or differs) for row in result.rows]
            result = replace(result, rows=rows)
        head = {"name": self.name, "claim": self.claim, "preset": preset}
        rows_of = "" if table is None else f" --table {shlex.quote(str(table))}"
        made = {
            "command": f"thresher reproduce {self.name} --preset {preset}{rows_of}",
            "commit": git_commit(),
            "hardware": hardware(choose_device().type),
            "versions": versions(),
        }
        rows_as_json = [row.to_dict() for row in result.rows]
        write_json(
            out / "recipe.json", {**head, "made": made, "rows": rows_as_json, "data": result.data}
        )
        return result
