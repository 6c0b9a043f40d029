"""Published steps: every row has a recipe, and every recipe is one that can be called."""

from __future__ import annotations

import math

import pytest
from step_recipes import RECIPES, Recipe, recipe_of
from training_steps import PUBLISHED, record, rows_of, summary_of
from transformer.config import configured

import systolic
from systolic.chips import SliceShape, with_flags

ROWS = rows_of(PUBLISHED, None)


def test_rows_and_recipes_belong_together() -> None:
    found = [recipe_of(row) for row in ROWS]
    assert None not in found
    assert sorted(map(id, found)) == sorted(map(id, RECIPES))


@pytest.mark.parametrize(
    "recipe", [each for each in RECIPES if not each.unsupported], ids=lambda each: f"{each.op} {each.topology}"
)
def test_a_recipe_can_be_called(recipe: Recipe) -> None:
    chip = with_flags(systolic.chip(recipe.chip), recipe.flags)
    assert math.prod(recipe.mesh.values()) == len(SliceShape.parse(chip, recipe.topology).devices)
    changes = {name: value for name, value in recipe.parameters.items() if name not in ("config", "batch", "seq")}
    configured(recipe.parameters["config"], **changes)
    row = next(row for row in ROWS if recipe_of(row) is recipe)
    assert bool(row["time_us"]) != (recipe.rate_tflops is not None)


def test_errors_are_of_rows_that_are_predicted() -> None:
    rows = [record(row, recipe_of(row), None, "why not") for row in ROWS]
    assert summary_of(rows) == {"predicted": 0, "median_error_percent": None, "worst_error_percent": None}
    for row, error in zip(rows, (-10.0, 20.0, 30.0), strict=False):
        row["error_percent"] = error
    assert summary_of(rows) == {"predicted": 3, "median_error_percent": 20.0, "worst_error_percent": 30.0}
