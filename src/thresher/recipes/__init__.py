"""One file per claim of the papers; `thresher reproduce` lists them.

A recipe is a module of this package with a variable `RECIPE`. Modules are discovered, so adding a
claim is adding a file. They must import quickly (no torch at the top), because listing the recipes
imports all of them.
"""

import importlib
import pkgutil
from pathlib import Path

from thresher.errors import NotFoundError, nearest
from thresher.paths import read_json
from thresher.recipes.base import ClaimRow, Recipe, RecipeResult

__all__ = ["ClaimRow", "Recipe", "RecipeResult", "all_recipes", "find", "stored_verdicts"]
VERDICTS = Path(__file__).with_name("verdicts.json")


def all_recipes() -> list[Recipe]:
    """Return every recipe, sorted by claim."""
    recipes: dict[str, Recipe] = {}
    for module in pkgutil.iter_modules(__path__):
        recipe = getattr(importlib.import_module(f"{__name__}.{module.name}"), "RECIPE", None)
        if recipe is None:
            continue
        if recipe.name in recipes:
            raise ValueError(f"two recipes are named {recipe.name}")
        recipes[recipe.name] = recipe
    return sorted(recipes.values(), key=lambda recipe: (recipe.claim, recipe.name))


def find(name: str) -> Recipe:
    """Return the recipe called `name`.

    Raises:
        NotFoundError: There is no such recipe.
    """
    recipes = {recipe.name: recipe for recipe in all_recipes()}
    if name not in recipes:
        raise NotFoundError(f'there is no recipe "{name}"', nearest(name, recipes))
    return recipes[name]


def stored_verdicts() -> dict[str, dict[str, int]]:
    """Return how many rows of each stored result have each verdict, by recipe.

    `make claims` counts them in `results/`.
    """
    counts: dict[str, dict[str, int]] = read_json(VERDICTS)
    return counts
