"""Schedules of tiles of grouped products, refused tiles, and the planner's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import systolic
from systolic.chips import CHIPS
from systolic.ops.grouped.cost import gradient_configs, typical_sizes
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, total_bytes
from systolic.spec import SpecError

# groups, m, k, n: Mixtral, DeepSeek-V3, Qwen3 and gpt-oss, and what nothing divides
SHAPES = [
    (8, 4096, 4096, 14336),
    (8, 65536, 14336, 4096),
    (256, 8192, 7168, 2048),
    (128, 1024, 4096, 1536),
    (128, 4096, 2880, 2880),
    (3, 16, 100, 300),
]


def product(groups: int, m: int, k: int, n: int) -> GroupedSpec:
    return GroupedSpec(
        m=m, k=k, n=n, groups=groups, rows_per_group=max(m // groups, 1), dtype="bfloat16", dtype_out="bfloat16"
    )


def gradient(groups: int, m: int, k: int, n: int) -> GroupedGradientSpec:
    return GroupedGradientSpec(
        m=m, k=k, n=n, groups=groups, rows_per_group=max(m // groups, 1), dtype="bfloat16", dtype_out="bfloat16"
    )


def config(tile_m: int, tile_k: int, tile_n: int, rows: int, columns: int) -> KernelConfig:
    tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=columns, pipeline="manual")


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["v5e", "v6e", "v7x", "v5p"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_chosen_fits_and_is_legal(shape: tuple[int, int, int, int], name: str) -> None:
    chip = systolic.chip(name)
    for spec in (product(*shape), gradient(*shape)):
        plan = systolic.Planner(None).plan(spec, chip)
        assert plan.vmem_bytes <= chip.usable_vmem_bytes_per_core
        assert plan.time_us >= max(plan.modelled.compute_us, plan.modelled.copy_us)
        assert plan.time_us >= 0.8 * max(plan.mxu_us, plan.hbm_us)


def test_the_buffers_are_what_is_left_for_weights() -> None:
    spec, chip = product(8, 4096, 4096, 14336), CHIPS["v6e"]
    schedule = GroupedSchedule.of(spec, config(1536, 4096, 512, 512, 512), chip)
    assert (schedule.panels, schedule.grid_n, schedule.row_multiple) == (2, 28, 16)
    assert [block.rows for block in schedule.blocks] == [512, 384, 256, 128, 64]
    weights = next(one for one in schedule.buffers if one.name == "rhs")
    assert weights.copies == schedule.weight_slots
    assert total_bytes(schedule.buffers) + weights.bytes // weights.copies > 0.85 * chip.usable_vmem_bytes_per_core


def test_one_panel_where_all_rows_fit() -> None:
    schedule = GroupedSchedule.of(product(8, 256, 128, 256), config(512, 128, 256, 64, 256), CHIPS["v5e"])
    assert schedule.panels == 1


@pytest.mark.parametrize(
    ("tiles", "rule"),
    [
        (config(1536, 2048, 512, 512, 512), "whole-k"),
        (config(1536, 4096, 500, 512, 500), "tile-divides"),
        (config(1560, 4096, 512, 520, 512), "tile-alignment"),
        (config(65536, 4096, 512, 512, 512), "vmem"),
    ],
)
def test_rules(tiles: KernelConfig, rule: str) -> None:
    with pytest.raises(IllegalTilesError) as refused:
        GroupedSchedule.of(product(8, 4096, 4096, 14336), tiles, CHIPS["v6e"])
    assert rule in [one.rule for one in refused.value.violations]


def test_rules_of_the_gradient() -> None:
    with pytest.raises(IllegalTilesError) as refused:
        GradientSchedule.of(gradient(8, 4096, 4096, 14336), config(512, 4096, 14336, 512, 512), CHIPS["v6e"])
    assert [one.rule for one in refused.value.violations] == ["vmem"]


@pytest.mark.parametrize("name", ["v6e", "v7x"])
def test_a_gradient_that_is_mostly_stored_has_room_for_several_tiles_of_it(name: str) -> None:
    """With one, products wait for each store: the model knows, and does not choose the largest tile that fits."""
    spec, chip = gradient(256, 1024, 7168, 2048), systolic.chip(name)
    chosen = systolic.Planner(None).plan(spec, chip)
    assert GradientSchedule.of(spec, chosen.config, chip).out_slots > 1
    largest = max(
        (one for one in gradient_configs(spec, chip) if GradientSchedule.of(spec, one.config, chip).out_slots == 1),
        key=lambda one: one.config.tiles.tile_k * one.config.tiles.tile_n,
    )
    assert largest.modelled.time_us > largest.modelled.compute_us + 0.9 * chosen.hbm_us


def test_typical_sizes_are_all_rows_of_as_many_groups_as_are_expected_to_have_any() -> None:
    sizes = typical_sizes(64, 256, 16)
    assert sum(sizes) == 256
    assert sum(size > 0 for size in sizes) <= 16
    assert typical_sizes(64, 256, 16) == sizes


@pytest.mark.parametrize("make", [product, gradient])
def test_rows_of_groups_on_other_devices_take_no_time(make: Callable[..., Any]) -> None:
    spec = make(16, 4096, 1024, 512)
    ours, alone = (systolic.Planner(None).plan(one, "v6e") for one in (dataclasses.replace(spec, m=32768), spec))
    assert ours.time_us == pytest.approx(alone.time_us, rel=0.02)


@pytest.mark.parametrize("changes", [{"groups": 0}, {"rows_per_group": 0}, {"dtype": "bf16"}, {"precision": "higher"}])
def test_specs_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        dataclasses.replace(product(8, 64, 64, 64), **changes)
