"""The stored results of the recipes; `tools/claims.py` collects them."""

import json
from dataclasses import dataclass
from importlib import resources

STORED = "stored.json"


@dataclass(frozen=True)
class StoredResult:
    """A recipe's result in `results/`."""

    preset: str
    command: str
    commit: str | None
    hardware: dict[str, str | int]
    versions: dict[str, str]
    rows: list[dict[str, object]]
    """Those of `recipe.json`."""


def stored_results() -> dict[str, StoredResult]:
    """Return the stored results by recipe, as `make claims` collected them from `results/`."""
    text = resources.files(__package__).joinpath(STORED).read_text(encoding="utf-8")
    return {name: StoredResult(**values) for name, values in json.loads(text).items()}
