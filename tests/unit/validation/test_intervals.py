"""The rule of the interval, on planted programs."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from scipy.stats import t

from systolic.accuracy.time_error import CheckedKind, CheckedRatio
from systolic.simulator import CoreRun, OpRun, SimulatedRun, kernel_name, same_kernel, traits_of
from systolic.simulator.core_records import SparseCoreRun, SparseOpRun
from systolic.timing import Measurement
from systolic.validation.errors import PublishedProgram, compared
from systolic.validation.intervals import FITTED_CONSTANTS, Compared, compared_programs, half_width, time_errors
from systolic.validation.published import PublishedRow


def a_run(*, time_us: float = 100.0, kernel: str = "mine", pallas: bool = True, matrix: float = 0.9) -> SimulatedRun:
    cycles = round(time_us * 1000)
    op = OpRun(
        name=f"{kernel}.7", scope="", calls=1, begin_cycles=0, end_cycles=cycles, cycles=cycles, is_pallas=pallas
    )
    core = CoreRun(
        core=0,
        cycles=cycles,
        ops=(op,),
        copy_stall_cycles=0,
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=round(cycles * 4 * matrix),
        hbm_read_bytes=cycles * 5,
        hbm_written_bytes=0,
        copies=50,
    )
    return SimulatedRun(
        chip="v5e",
        clock_hz=1e9,
        cores=(core,),
        prefetch_cycles=0,
        matrix_units=4,
        bundles=1,
        hbm_bytes_per_cycle=10.0,
    )


def program(
    deviation: float, *, in_view: bool = False, recorded: bool = False, size: int = 1024, **run: object
) -> Compared:
    traits = traits_of(a_run(**run))  # pyright: ignore[reportArgumentType]
    return Compared(
        chip="v5e", sizes=(size, size, size), deviation=deviation, traits=traits, in_view=in_view, recorded=recorded
    )


def kind_of(programs: list[Compared], generation: str = "v5e") -> CheckedKind:
    """The narrowest kind of the first program."""
    (kind,) = (
        kind
        for kind in time_errors(programs, command="c", versions={}).kinds
        if (kind.generation, kind.kind) == (generation, programs[0].traits.kinds[0])
    )
    return kind


def ratio_of(programs: list[Compared], kernel: str = "mine") -> CheckedRatio | None:
    errors = time_errors(programs, command="c", versions={})
    return next((ratio for ratio in errors.ratios if (ratio.generation, ratio.kernel) == ("v5e", kernel)), None)


def test_from_nine_programs_on_it_is_an_order_statistic() -> None:
    errors = [0.01, -0.02, 0.03, -0.04, 0.05, -0.06, 0.07, -0.08, 0.09]
    assert half_width(errors) == pytest.approx(0.09)
    assert half_width([*errors, *[0.0] * 10]) == pytest.approx(0.08)  # 0.9 · 20 = 18 of 19
    assert half_width([*errors, 0.0]) == pytest.approx(0.089)  # 0.9 · 11 = 9.9 of 10


def test_of_few_programs_it_is_students() -> None:
    assert half_width([]) is None
    assert half_width([0.1, 0.1]) is None
    assert half_width([0.03, -0.04, 0.05]) == pytest.approx(math.sqrt((9 + 16 + 25) / 3) / 100 * float(t.ppf(0.95, 3)))


@pytest.mark.parametrize("count", [3, 5, 8, 9, 20])
def test_it_holds_for_nine_in_ten(count: int) -> None:
    """With planted errors drawn many times, the next one lies in the interval in nine cases of ten, or a few more."""
    chance = random.Random(count)
    held = 0
    for _ in range(4000):
        *known, following = (chance.gauss(0, 0.03) for _ in range(count + 1))
        width = half_width(known)
        assert width is not None
        held += abs(following) <= width
    assert 0.88 < held / 4000 < 0.97


def test_kinds_are_apart_and_the_bias_keeps_its_sign() -> None:
    kernels = [program(percent / 100) for percent in (-3, -2, -2)]
    programs = [*kernels, *(program(0.2, pallas=False) for _ in range(3))]
    xla, kernel = kind_of(programs[::-1]), kind_of(programs)
    assert (xla.programs, xla.bias_percent) == (3, 20.0)
    assert (kernel.programs, kernel.bias_percent) == (3, -2.0)
    assert kernel.error_percent is not None
    assert 2 < kernel.error_percent < 10
    assert kernel.least_us == 100.0
    assert kernel.most_copies_per_us == 0.5
    wide = [kind for kind in time_errors(programs, command="c", versions={}).kinds if kind.programs == 6]
    assert {kind.generation for kind in wide} == {"v5e", ""}


def test_coverage_is_counted_on_programs_that_the_interval_is_not_from() -> None:
    fitted = [program(0.01 * at, in_view=True, recorded=True) for at in range(1, 10)]
    held_out = [program(deviation, recorded=True) for deviation in (0.0, -0.08, 0.5)]
    kind = kind_of([*fitted, *held_out])
    assert (kind.programs, kind.error_percent) == (9, pytest.approx(9.0))
    assert (kind.held_out, kind.covered) == (3, 2)


def test_programs_in_view_count_as_if_left_out_of_the_fit() -> None:
    deviations = [0.01] * (2 * FITTED_CONSTANTS)
    blind = kind_of([program(deviation) for deviation in deviations])
    seen = kind_of([program(deviation, in_view=True) for deviation in deviations])
    assert blind.error_percent == pytest.approx(1.0)
    assert seen.error_percent == pytest.approx(2.0)  # 1/(1 − 1/2)
    too_few = [program(0.01, in_view=True) for _ in range(FITTED_CONSTANTS)]
    assert time_errors(too_few, command="c", versions={}).kinds == ()


def test_links_have_fewer_constants() -> None:
    waits = [replace(one, traits=replace(one.traits, link_share=0.9)) for one in [program(0.01, in_view=True)] * 4]
    (kind, _) = time_errors(waits, command="c", versions={}).kinds
    assert kind.kind == "program bound by links"
    assert kind.error_percent == pytest.approx(2.0 * float(t.ppf(0.95, 4)), abs=0.01)  # 1/(1 − 2/4)


def test_ratios_are_of_one_kernel_and_like_sizes() -> None:
    alike = [program(0.10 + 0.001 * at, size=1024 + at) for at in range(12)]
    ratio, kind = ratio_of(alike), kind_of(alike)
    assert ratio is not None
    assert ratio.error_percent is not None
    assert kind.error_percent is not None
    assert ratio.error_percent < 0.2 < 10 < kind.error_percent
    unlike = [program(0.1, size=1024 * 3**at) for at in range(6)]
    unlike += [program(0.1, kernel=f"other{at}_x") for at in range(6)]
    assert ratio_of(unlike) is None
    counted = ratio_of([*alike, *(replace(one, deviation=0.2 * at, recorded=True) for at, one in enumerate(alike[:2]))])
    assert counted is not None
    assert (counted.held_out, counted.covered) == (2, 0)


def row(**changes: object) -> PublishedRow:
    fields: dict[str, object] = {"line": 2, "source": "somebody", "chip": "v5e", "op": "xla", "timing": "device"}
    fields |= dict.fromkeys(("dtype_lhs", "dtype_rhs", "dtype_out"), "bfloat16")
    fields |= {"m": 256, "k": 512, "n": 1024, "tile_m": None, "tile_k": None, "tile_n": None, "published_us": 110.0}
    return PublishedRow(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def test_rows_of_one_program_count_once_and_dispatch_does_not() -> None:
    run = a_run()
    same = PublishedProgram(chip="v5e", what="one", function=len, arguments=())
    other = PublishedProgram(chip="v5e", what="two", function=len, arguments=())
    measured = Measurement(chip="v5e", provenance="simulated", time_us=run.time_us, run=run)
    rows = [
        *(compared(row(published_us=us), same, measured, dispatch_us=50.0) for us in (104.0, 110.0, 190.0)),
        compared(row(timing="wall_clock"), other, measured, dispatch_us=50.0),  # half of it is dispatch
        compared(row(timing="guess"), other, measured, dispatch_us=50.0),
    ]
    (only,) = compared_programs(rows, {str(same): measured, str(other): measured})
    assert only.deviation == pytest.approx(0.10)
    assert only.sizes == (256, 512, 1024)
    assert not only.held_out


def test_the_kernel_of_a_run() -> None:
    mine, again, xla = a_run(), a_run(time_us=50.0), a_run(pallas=False)
    assert kernel_name(mine) == "mine"
    assert same_kernel(mine, again)
    assert same_kernel(a_run(kernel="f_bt_128_ht_512"), a_run(kernel="f_bt_1024_ht_256"))
    assert not same_kernel(a_run(kernel="f_v1"), a_run(kernel="f_v2"))
    assert not same_kernel(mine, a_run(kernel="yours"))
    assert not same_kernel(xla, xla)
    assert traits_of(xla).pallas_share == 0
    assert traits_of(mine).copies_per_us == pytest.approx(0.5)
    assert (traits_of(mine).kernel, traits_of(xla).kernel) == ("mine", "")
    assert traits_of(mine, link_cycles=mine.cycles // 4).link_share == pytest.approx(0.25)


def test_sparse_cores_limit_a_program_only_while_the_core_waits() -> None:
    beside = a_run(pallas=False, matrix=0.2)
    cycles = beside.cores[0].cycles
    op = SparseOpRun(name="format", begin_cycles=0, end_cycles=cycles)
    sparse = SparseCoreRun(
        core=0,
        ops=(op,),
        hbm_read_bytes=0,
        hbm_written_bytes=0,
        streams=0,
        indices=0,
        tile_stall_cycles=0,
    )
    beside = replace(beside, sparse_cores=(sparse,))
    waiting = replace(beside, cores=(replace(beside.cores[0], semaphore_stall_cycles=cycles * 9 // 10),))
    assert traits_of(beside).resource != "SparseCores"
    assert traits_of(waiting).resource == "SparseCores"
