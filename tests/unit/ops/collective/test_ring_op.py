"""Products across chips as ops: their configurations, the slices that trials are kept apart by, and stored winners."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import systolic
from systolic.chips import chip
from systolic.ops.collective.choice import chosen
from systolic.ops.collective.configs import schedule_of
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.slices import ring_slice, slice_of
from systolic.ops.op import op_of, record_of
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import SliceMesh, SpecError
from systolic.store import Subject, Trial, TrialStore, read_subject

V6E = chip("v6e")
SLICE = ring_slice("2x4", 8)
SHARED: dict[str, Any] = {"devices": 8, "dtype": "bfloat16", "dtype_out": "bfloat16", "slice_mesh": SLICE}
GATHER = RingSizes(rows=256, k=4096, columns=1792, scatters=False, **SHARED)
SCATTER = replace(GATHER, k=1792, columns=4096, scatters=True)
IN_PARTS = replace(GATHER, rows=1024, k=8192, columns=3584)  # 70B with 8192 tokens
WEIGHT = WeightSizes(rows=1024, k=4096, columns=1024, cut="k", **SHARED)


@pytest.mark.parametrize("sizes", [GATHER, SCATTER, IN_PARTS, WEIGHT, replace(WEIGHT, rows=2048, columns=14336)])
def test_a_configuration_is_a_schedule(sizes: Any) -> None:
    op = op_of(sizes)
    _, candidates = op.search(sizes, V6E)
    assert len({candidate.config for candidate in candidates}) == len(candidates) > 4
    times = [candidate.modelled_us for candidate in candidates]
    assert times == sorted(times)
    schedules = {str(schedule_of(sizes, candidate.config, V6E)) for candidate in candidates}
    assert len(schedules) == len(candidates)
    for candidate in candidates[:8]:
        assert op.judge(sizes, candidate.config, V6E) == candidate
        assert op.least_time_us(sizes, candidate.config, V6E) <= candidate.modelled_us
        assert op.layout(sizes, candidate.config, V6E).vmem_bytes <= V6E.usable_vmem_bytes_per_core


def test_a_weight_that_is_too_large_lies_in_hbm() -> None:
    small, large = WEIGHT, replace(WEIGHT, rows=8192, columns=14336)
    for sizes, in_hbm in ((small, False), (large, True)):
        schedule: Any = schedule_of(sizes, systolic.plan(sizes, "v6e").config, V6E)
        assert schedule.in_hbm == in_hbm


@pytest.mark.parametrize(
    ("sizes", "name", "in_parts"),
    [
        (GATHER, "v6e", False),
        (IN_PARTS, "v6e", True),
        (replace(GATHER, rows=1024, slice_mesh=None), "v7x", True),
        (replace(GATHER, devices=4, rows=8192, slice_mesh=None), "v6e", None),
        (replace(SCATTER, rows=8192), "v6e", None),
    ],
)
def test_rows_that_do_not_fit_go_round_the_ring_in_parts(sizes: RingSizes, name: str, in_parts: bool | None) -> None:
    if in_parts is None:
        with pytest.raises(IllegalTilesError, match="VMEM: all rows of x and w"):
            systolic.plan(sizes, name)
        return
    schedule: Any = schedule_of(sizes, systolic.plan(sizes, name).config, chip(name))
    assert (schedule.parts > 1) == in_parts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tiles": Tiles(tile_m=384, tile_k=4096, tile_n=896)}, "whole pieces of 256 rows"),
        ({"tiles": Tiles(tile_m=768, tile_k=4096, tile_n=896)}, "use a divisor"),
        ({"tiles": Tiles(tile_m=256, tile_k=2048, tile_n=896)}, "all of k=4096"),
        ({"tiles": Tiles(tile_m=256, tile_k=4096, tile_n=1024), "subtile_n": 1024}, "cut the columns evenly"),
        ({"pipeline": "auto"}, "manual DMA"),
    ],
)
def test_a_configuration_that_breaks_rules_is_refused(changes: dict[str, Any], message: str) -> None:
    legal = KernelConfig(
        tiles=Tiles(tile_m=256, tile_k=4096, tile_n=896), subtile_m=128, subtile_n=896, pipeline="manual"
    )
    assert op_of(GATHER).judge(GATHER, legal, V6E).modelled_us > 0
    with pytest.raises(IllegalTilesError, match=message):
        op_of(GATHER).judge(GATHER, replace(legal, **changes), V6E)


def test_trials_of_slices_and_of_products_are_kept_apart() -> None:
    others = (
        GATHER,
        replace(GATHER, slice_mesh=ring_slice("4x4", 8, before=2)),
        replace(GATHER, slice_mesh=ring_slice("4x4", 8, after=2)),
        replace(GATHER, transpose_rhs=True),
        SCATTER,
        WEIGHT,
    )
    subjects = [Subject.here(sizes, "v6e") for sizes in others]
    assert len({subject.key for subject in subjects}) == len(others)
    for subject in subjects:
        assert read_subject(json.loads(subject.as_json())) == subject


def test_without_a_slice_there_is_nothing_to_tune() -> None:
    with pytest.raises(SpecError, match="tuned on a slice; set slice_mesh"):
        systolic.tune(replace(GATHER, slice_mesh=None), "v6e")
    with pytest.raises(SpecError, match="outs=2 with 2 weights: use 1 or 3"):
        systolic.tune(replace(GATHER, weights=2, outs=2), "v6e")
    assert record_of(GATHER)["op"] == "ring product"


def test_a_stored_winner_decides(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    config = op_of(GATHER).search(GATHER, V6E)[1][3].config
    subject = Subject.here(GATHER, "v6e")
    store.keep(subject, Trial(config=config, status="ok", simulated_us=100.0))
    with systolic.use(store=store) as planner:
        plan = systolic.plan(GATHER, "v6e")
        assert (plan.config, plan.provenance) == (config, "simulated")
        assert systolic.plan(replace(GATHER, slice_mesh=None), "v6e").provenance == "modelled"
        choice = chosen(GATHER, V6E)
        assert choice.by_kernel
        assert choice.spec == GATHER
        assert "100.0 µs simulated, and XLA's collective and a product 128.6 µs by arithmetic" in choice.reason
        for xla_us, by_kernel in ((101.0, True), (99.0, False)):
            store.keep(subject, Trial(config=None, status="ok", simulated_us=xla_us))
            planner.forget()
            choice = chosen(GATHER, V6E)
            assert choice.by_kernel == by_kernel
            assert f"XLA's program {xla_us} µs" in choice.reason


def mesh_of(kind: str, coords: list[tuple[int, ...]], **axes: int) -> Any:
    devices = np.empty(len(coords), object)
    devices[:] = [SimpleNamespace(device_kind=kind, coords=place) for place in coords]
    return SimpleNamespace(devices=devices.reshape(tuple(axes.values())), shape=axes, axis_names=tuple(axes))


GRID = [(x, y, 0) for y in range(4) for x in range(2)]  # of a 2x4


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (mesh_of(V6E.device_kind, GRID, tp=8), SliceMesh.of("2x4", ring=8)),
        (mesh_of(V6E.device_kind, GRID[::-1], tp=8), SliceMesh.of("2x4", ring=8)),
        (mesh_of(V6E.device_kind, GRID, data=2, tp=4), SliceMesh.of("2x4", before=2, ring=4)),
        (mesh_of(V6E.device_kind, GRID, tp=4, data=2), SliceMesh.of("2x4", ring=4, after=2)),
        (mesh_of(V6E.device_kind, GRID[:6], tp=6), None),
        (mesh_of(V6E.device_kind, [*GRID[:7], (0, 4, 0)], tp=8), None),
        (mesh_of("cpu", GRID, tp=8), None),
        (
            mesh_of(chip("v7x").device_kind, [(x, y, 0) for y in range(2) for x in range(2) for _ in range(2)], tp=8),
            SliceMesh.of("2x2x1", ring=8),
        ),
        (None, None),
    ],
)
def test_a_mesh_fills_a_slice(mesh: Any, expected: SliceMesh | None) -> None:
    assert slice_of(mesh, "tp") == expected
