"""Published steps: every row has a recipe, and every recipe is one that can be called."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner
from maxtext_recipes import MAXTEXT_RECIPES
from step_recipe import Recipe, recipe_of
from step_recipes import RECIPES
from training_steps import (
    KEPT,
    PUBLISHED,
    compiled_recipe,
    kept_or_reason,
    kept_results,
    lasting_result,
    main,
    published_us,
    record,
    rows_of,
    summary_of,
)
from transformer.models import configured

import systolic
from systolic.chips import SliceShape, with_flags
from systolic.steps import StepRun

ROWS = rows_of(PUBLISHED)


def test_rows_and_recipes_belong_together() -> None:
    found = [recipe_of(row, RECIPES) for row in ROWS]
    assert None not in found
    assert sorted(map(id, found)) == sorted(map(id, RECIPES))
    assert all("@" in recipe.source for recipe in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.op} {recipe.topology}")
def test_a_recipe_can_be_called(recipe: Recipe) -> None:
    chip = with_flags(systolic.chip(recipe.chip), recipe.flags)
    assert math.prod(recipe.mesh.values()) == len(SliceShape.parse(chip, recipe.topology).devices)
    changes = {name: value for name, value in recipe.parameters.items() if name not in ("config", "batch", "seq")}
    configured(recipe.parameters["config"], **changes)
    row = next(row for row in ROWS if recipe_of(row, RECIPES) is recipe)
    assert bool(row["time_us"]) != (recipe.rate_tflops is not None)


def test_maxtexts_own_step_is_listed_for_rows_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    CliRunner().invoke(main, ["--maxtext", "--quiet", "--json", str(file)], catch_exceptions=False)
    listed = json.loads(file.read_text())["rows"]
    assert [(row["chip"], row["step"]) for row in listed] == [(recipe.chip, recipe.op) for recipe in MAXTEXT_RECIPES]
    for recipe in MAXTEXT_RECIPES:
        devices = SliceShape.parse(systolic.chip(recipe.chip), recipe.topology).devices
        assert recipe.is_maxtext
        assert math.prod(recipe.mesh.values()) == len(devices)


def test_errors_are_of_rows_that_are_predicted() -> None:
    rows = [record(row, recipe_of(row, RECIPES), None, "why not") for row in ROWS]
    assert summary_of(rows) == {"predicted": 0, "median_error_percent": None, "worst_error_percent": None}
    for row, error in zip(rows, (-10.0, 20.0, 30.0), strict=False):
        row["error_percent"] = error
    assert summary_of(rows) == {"predicted": 3, "median_error_percent": 20.0, "worst_error_percent": 30.0}


def test_a_result_is_kept_until_its_recipe_changes() -> None:
    recipe = RECIPES[0]
    row = next(row for row in ROWS if recipe_of(row, RECIPES) is recipe)
    key = (row["chip"], row["topology"], row["op"])
    result = record(row, recipe, None, "") | {"recipe": compiled_recipe(recipe), "predicted_s": 2.0}
    assert kept_or_reason(row, recipe, {key: result})["predicted_s"] == 2.0
    other = replace(recipe, parameters={**recipe.parameters, "batch": 99})
    stale = kept_or_reason(row, other, {key: result})
    assert stale["predicted_s"] is None
    assert "recipe changed" in stale["reason"]
    assert kept_or_reason(row, recipe, {})["reason"] == "not predicted yet"


def test_a_failed_prediction_loses_no_earlier_one() -> None:
    earlier = {"predicted_s": 2.0, "recipe": {"batch": 1}}
    failed = {"predicted_s": None, "recipe": {"batch": 1}}
    assert lasting_result(failed, earlier) is earlier
    assert lasting_result(failed, None) is failed
    again = earlier | {"predicted_s": 3.0}
    assert lasting_result(again, earlier) is again
    of_another_recipe = failed | {"recipe": {"batch": 2}}
    assert lasting_result(of_another_recipe, earlier) is of_another_recipe


def test_every_row_has_a_result_or_a_reason() -> None:
    kept = kept_results(KEPT)
    for row in ROWS:
        result = kept_or_reason(row, recipe_of(row, RECIPES), kept)
        assert (result["predicted_s"] is None) == bool(result["reason"])


@pytest.mark.parametrize(("counted", "flops"), [(1.0, 10.0), (0.5, 9.0), (0.0, 8.0)])
def test_a_rate_counts_its_share_of_attention(counted: float, flops: float) -> None:
    """Attention has 2 of 10 operations, and 1 with a causal mask."""
    recipe = Recipe(chip="v5p", op="", rate_tflops=0.5, attention_counted=counted)
    run = SimpleNamespace(chip="v5p", devices=4, flops=10e12, flops_causal=9e12)
    assert published_us({"time_us": ""}, recipe, cast(StepRun, run)) == pytest.approx(flops / 4 / 0.5 * 1e6)
    assert published_us({"time_us": "3"}, recipe, cast(StepRun, run)) == 3.0
