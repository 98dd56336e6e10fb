"""The verdicts of the stored results."""

import json
from importlib import resources

VERDICTS = "verdicts.json"


def stored_verdicts() -> dict[str, dict[str, int]]:
    """Return how many rows of each stored result have each verdict, by recipe.

    `make claims` counts them in `results/`.
    """
    text = resources.files(__package__).joinpath(VERDICTS).read_text(encoding="utf-8")
    counts: dict[str, dict[str, int]] = json.loads(text)
    return counts
