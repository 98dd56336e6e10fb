"""One file per claim of the papers; `thresher reproduce` lists them.

A recipe is a module here with a variable `RECIPE` (a `Recipe`) or `RECIPES` (several). Modules are
found by looking, so adding a claim is adding a file; they must import quickly (no torch at the
top), since the list is shown before anything is run.
"""

import importlib
import pkgutil

from thresher.errors import ThresherError, nearest
from thresher.recipes.base import Recipe, RecipeResult, row

__all__ = ["Recipe", "RecipeResult", "all_recipes", "find", "row"]


def all_recipes() -> list[Recipe]:
    """Every recipe, in the order of the claims they test."""
    found: dict[str, Recipe] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "base":
            continue
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        here = getattr(loaded, "RECIPES", None) or [getattr(loaded, "RECIPE", None)]
        for recipe in here:
            if recipe is None:
                continue
            if recipe.name in found:
                raise ValueError(f"two recipes are named {recipe.name}")
            found[recipe.name] = recipe
    return sorted(found.values(), key=lambda recipe: (recipe.claim, recipe.name))


def find(name: str) -> Recipe:
    recipes = {recipe.name: recipe for recipe in all_recipes()}
    if name not in recipes:
        raise ThresherError(f'there is no recipe "{name}"', nearest(name, recipes))
    return recipes[name]
