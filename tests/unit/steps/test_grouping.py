"""Times of the parts of a step, and changes that would help, for a run made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from systolic.simulator import CollectiveRun, CoreRun, OpRun, SimulatedRun
from systolic.steps import BETWEEN, StepMemory
from systolic.steps.changes import step_changes
from systolic.steps.grouping import part_runs

SCOPES = {
    "product": "jit(f)/jvp(mlp)/dot",
    "again": "jit(f)/transpose(jvp(mlp))/rematted_computation/dot",
    "back": "jit(f)/transpose(jvp(mlp))/dot",
    "gather": "jit(f)/jvp(mlp)/gather",
    "update": "jit(f)/optimizer/sub",
    "permute": "jit(f)/transpose(jvp(mlp))/permute",
}


def op(name: str, cycles: int, **more: Any) -> OpRun:
    return OpRun(name=name, scope=SCOPES[name], calls=1, begin_cycles=0, end_cycles=cycles, cycles=cycles, **more)


def collective(name: str, exposed: int) -> CollectiveRun:
    return CollectiveRun(
        name=name,
        kind="all-gather",
        calls=1,
        sent_bytes=1000,
        begin_cycles=0,
        end_cycles=exposed,
        cycles=exposed,
        exposed_cycles=exposed,
        links=("x+",),
    )


OPS = (
    op("product", 4000, matrix_busy_cycles=6000),
    op("again", 1000, matrix_busy_cycles=1000),
    op("back", 2500, hbm_read_bytes=20_000),
    op("gather", 500),
    op("update", 1000, hbm_written_bytes=9_000, copy_stall_cycles=10),
)
RUN = SimulatedRun(
    chip="v6e",
    clock_hz=1e9,
    cores=(
        CoreRun(
            core=0,
            cycles=10_000,
            ops=OPS,
            copy_stall_cycles=160,
            copy_overhead_cycles=0,
            matrix_stall_cycles=0,
            matrix_busy_cycles=7000,
            hbm_read_bytes=25_000,
            hbm_written_bytes=9_000,
            copies=3,
        ),
    ),
    prefetch_cycles=0,
    matrix_units=2,
    bundles=1,
    hbm_bytes_per_cycle=10.0,
)
COLLECTIVES = (collective("gather", 500), collective("permute", 700))
MEMORY = StepMemory(
    argument_bytes=10,
    result_bytes=8,
    donated_bytes=7,
    temporary_bytes=20,
    code_bytes=1,
    capacity_bytes=100,
)


def test_parts_add_up_to_the_time() -> None:
    parts = part_runs(RUN, COLLECTIVES, SCOPES, ("mlp", "optimizer"))
    assert sum(each.cycles for each in parts) == RUN.cycles
    assert sum(each.hbm_bytes for each in parts) == RUN.hbm_bytes
    assert sum(each.exposed_cycles for each in parts) == 1200
    found = {(each.part, each.in_pass): each for each in parts}
    assert found["mlp", "forward"].cycles == 4500  # the product and the gather
    assert found["mlp", "forward"].exposed_cycles == 500
    assert found["mlp", "backward"].cycles == 3200  # what the program waits for by itself belongs to the part as well
    assert found["mlp", "recompute"].cycles == 1000
    between = found[BETWEEN, "all"]
    assert between.cycles == 300
    assert between.limit_share == pytest.approx(150 / 300)
    assert parts[-1] == between


def test_each_part_says_what_is_busiest() -> None:
    found = {(each.part, each.in_pass): each for each in part_runs(RUN, COLLECTIVES, SCOPES, ("mlp", "optimizer"))}
    forward, update = found["mlp", "forward"], found["optimizer", "update"]
    assert (forward.limit, forward.limit_share) == ("matrix units", pytest.approx(6000 / 2 / 4500))
    assert (update.limit, update.limit_share) == ("HBM", pytest.approx(0.9))


def test_changes_are_upper_bounds() -> None:
    parts = part_runs(RUN, COLLECTIVES, SCOPES, ("mlp", "optimizer"))
    found = {each.title: each.saving for each in step_changes(RUN, parts, MEMORY)}
    assert len(found) == 3
    assert found["no exposed communication"] == pytest.approx(0.12)
    assert found["twice the batch"] == pytest.approx((0.1 + 0.12) / 2)
    # Four thousand and five hundred, one thousand: less their products' time on two units.
    assert found["mlp at the rate of the matrix units"] == pytest.approx((4500 - 500 - 3000 + 1000 - 500) / 10_000)


def test_nothing_is_said_where_nothing_would_help() -> None:
    alone = replace(
        RUN, cores=(replace(RUN.cores[0], cycles=4000, ops=(op("product", 4000, matrix_busy_cycles=8000),)),)
    )
    parts = part_runs(alone, (), SCOPES, ("mlp",))
    assert step_changes(alone, parts, MEMORY) == ()


def test_memory_counts_donated_results_once() -> None:
    assert MEMORY.needed_bytes == 10 + 1 + 20 + 1
    assert MEMORY.left_bytes == 100 - 32
    assert replace(MEMORY, peak_bytes=25).needed_bytes == 26  # not everything is there at once
    assert replace(MEMORY, peak_bytes=90).needed_bytes == 32  # the rest of the peak is in the host's memory
