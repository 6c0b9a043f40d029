"""Runs of anybody's kernels in interpret mode: planted faults are found."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from check_runs import ALL_SEEDS, EXAMPLES, PLAIN, PRODUCT, TILES, array, errors, example, one, product, ran
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.finding import Finding

# --- planted faults --------------------------------------------------------------------------------------------------


def test_a_tail_of_rows_that_is_dropped_was_never_written() -> None:
    outcome = ran(example("planted_faults.py:dropped_tail", **TILES), array(300, 256), array(256, 256), reference=PLAIN)
    finding = one(outcome, "nan")
    assert finding.grade == "error"
    assert "rows 256..299 of 300" in finding.value
    assert errors(outcome) == [finding]


def test_a_tail_of_k_that_is_dropped_gives_wrong_numbers() -> None:
    outcome = ran(example("planted_faults.py:dropped_tail", **TILES), array(256, 300), array(300, 256), reference=PLAIN)
    assert one(outcome, "wrong-result") in errors(outcome)
    assert outcome.summary.error is not None
    assert outcome.summary.tolerance is not None
    assert outcome.summary.error > 100 * outcome.summary.tolerance


def test_a_buffer_that_is_copied_into_while_it_is_read() -> None:
    racing = example("planted_faults.py:racing_copy", **TILES)
    outcome = ran(racing, *PRODUCT, reference=PLAIN, seeds=ALL_SEEDS)
    race = one(outcome, "race")
    assert race.value.startswith("lhs_vmem: a ")
    line = int(race.where.split(":")[1].split()[0])
    assert "copy.start()" in (EXAMPLES / "planted_faults.py").read_text().splitlines()[line - 1]
    one(outcome, "order")


def test_a_sum_that_nobody_clears() -> None:
    outcome = ran(example("planted_faults.py:uninitialised_accumulator", **TILES), *PRODUCT, reference=PLAIN)
    assert "100.0%" in one(outcome, "nan").value


RAGGED = (array(200, 300), array(300, 250))


@pytest.mark.exhaustive
def test_the_ends_of_blocks_along_k_that_are_not_masked() -> None:
    assert not errors(ran(product, *RAGGED, reference=PLAIN))
    outcome = ran(functools.partial(product, mask=False), *RAGGED, reference=PLAIN)
    assert "100.0%" in one(outcome, "nan").value


def test_an_index_map_that_names_another_block() -> None:
    wrong = functools.partial(product, rhs_column=lambda i, j: 1 - j)
    outcome = ran(wrong, array(256, 256), array(256, 256), reference=PLAIN)
    assert "no rounding explains that" in one(outcome, "wrong-result").limit


def test_an_index_map_that_leaves_its_array() -> None:
    wrong = functools.partial(product, rhs_column=lambda i, j: j + i)
    finding = one(ran(wrong, array(256, 256), array(256, 256), reference=PLAIN), "out-of-bounds")
    assert finding.value.startswith("rhs_vmem: at step (1, 1, 0)") or "rhs_vmem" in finding.value
    assert "(256, 256)" in finding.value


def test_a_running_sum_in_bfloat16_hundreds_of_times_over_the_tolerance_is_an_error() -> None:
    outcome = ran(functools.partial(product, acc=jnp.bfloat16), array(256, 1024), array(1024, 256), reference=PLAIN)
    assert one(outcome, "precision").grade == "error"
    assert not [finding for finding in outcome.findings if finding.rule == "wrong-result"]


def test_integers_made_of_what_nobody_wrote() -> None:
    args = array(128, 256, dtype="int8"), array(256, 128, dtype="int8")
    outcome = ran(functools.partial(product, cleared=False, mask=False), *args, seeds=ALL_SEEDS)
    assert "with NaN and the largest integers and with zeros" in one(outcome, "uninitialised").value


def test_an_axis_that_sums_is_not_parallel() -> None:
    def body(x_vmem, out_vmem):
        @pl.when(pl.program_id(0) == 0)
        def _():
            out_vmem[...] = jnp.zeros_like(out_vmem)

        out_vmem[...] += x_vmem[...]

    def summed(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
            grid=(x.shape[0] // 8,),
            in_specs=[pl.BlockSpec((8, 128), lambda kk: (kk, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda kk: (0, 0)),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x)

    outcome = ran(
        summed, array(64, 128, dtype="float32"), reference=lambda x: x.reshape(-1, 8, 128).sum(0), seeds=range(4)
    )
    assert {"wrong-result", "order", "nan"} & {finding.rule for finding in errors(outcome)}


def copied(x: jax.Array, *, start: bool = True, wait: bool = True, rows: int = 8) -> jax.Array:
    """x through a buffer that the kernel fills by itself."""

    def body(x_hbm, out_vmem, x_vmem, sem):
        copy = pltpu.make_async_copy(x_hbm.at[pl.ds(pl.program_id(0) * 8, 8)], x_vmem, sem)
        if start:
            copy.start()
        if wait:
            copy.wait()
        out_vmem[...] = x_vmem[pl.ds(pl.program_id(0) * (8 - rows), 8)]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 8,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


COLUMN = array(32, 128, dtype="float32")


def source(finding: Finding) -> str:
    """The line of this file that a finding names."""
    file, line = finding.where.split(" in ")[0].split(":")
    assert file == __file__
    return Path(file).read_text().splitlines()[int(line) - 1]


def test_a_copy_that_nobody_waits_for() -> None:
    assert not ran(copied, COLUMN, reference=lambda x: x).findings
    outcome = ran(functools.partial(copied, wait=False), COLUMN, reference=lambda x: x, seeds=ALL_SEEDS)
    assert {"race", "semaphore", "nan"} <= {finding.rule for finding in errors(outcome)}
    semaphore, order = one(outcome, "semaphore"), one(outcome, "order")
    assert semaphore.value.startswith("sem holds 16,384 when the kernel ends")
    assert semaphore.value.endswith("at step 3")
    assert "copy.start()" in source(semaphore)
    assert order.value.endswith("the first read that differs is of x_vmem at step 0")
    assert "out_vmem[...] = x_vmem[" in source(order)
    assert outcome.summary.lost == 32 * 128  # NaN is no error of zero


def halves(x: jax.Array, *, keep: int) -> jax.Array:
    """`x` with zeros from row `keep` on; it is read whole as its upper half has come."""

    def body(x_hbm, out_vmem, x_vmem, sems):
        upper, lower = (
            pltpu.make_async_copy(x_hbm.at[pl.ds(at, 8)], x_vmem.at[pl.ds(at, 8)], sems.at[at // 8]) for at in (0, 8)
        )
        upper.start()
        lower.start()
        upper.wait()
        rows = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
        out_vmem[...] = jnp.where(rows < keep, x_vmem[...], 0)
        lower.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def test_rows_that_are_read_before_they_arrive_are_an_error_if_a_result_depends_on_them() -> None:
    x = array(16, 128, dtype="float32")
    masked = one(ran(functools.partial(halves, keep=8), x, seeds=ALL_SEEDS), "race")
    assert masked.grade == "warning"
    assert masked.value.endswith("no result depended on it, with copies done early or late")
    late = ran(functools.partial(halves, keep=9), x, seeds=ALL_SEEDS)
    assert one(late, "race").grade == "error"
    # Late copies alone do not show that early ones make no difference.
    assert one(ran(functools.partial(halves, keep=8), x, seeds=(0,)), "race").grade == "error"


@pytest.mark.exhaustive
def test_a_wait_for_a_copy_that_nobody_starts() -> None:
    finding = one(ran(functools.partial(copied, start=False), COLUMN), "deadlock")
    assert finding.value == "it waits for sem that nobody signals at step 0"
    assert "copy.wait()" in source(finding)
    assert not errors(ran(copied, COLUMN, reference=lambda x: x))  # and the next run is not disturbed


def test_a_slice_that_ends_outside() -> None:
    finding = one(ran(functools.partial(copied, rows=4), COLUMN), "out-of-bounds")
    assert finding.value == "x_vmem: at step 1 a read of [4:12, 0:128] in a buffer of shape (8, 128)"
    assert "out_vmem[...] = x_vmem[" in source(finding)


def test_a_store_that_ends_outside() -> None:
    def body(x_vmem, out_vmem):
        out_vmem[pl.ds(pl.program_id(0) * 2, 8)] = x_vmem[...]

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    out = jax.ShapeDtypeStruct((32, 128), jnp.float32)

    def moved(x: jax.Array) -> jax.Array:
        return pl.pallas_call(body, out_shape=out, grid=(4,), in_specs=[block], out_specs=block)(x)

    finding = one(ran(moved, COLUMN), "out-of-bounds")
    assert finding.value == "out_vmem: at step 1 a write of [2:10, 0:128] in a buffer of shape (8, 128)"
    assert "out_vmem[pl.ds(" in source(finding)


def test_a_copy_that_is_waited_for_when_its_buffer_is_gone() -> None:
    def body(x_hbm, out_vmem, sem):
        rows = x_hbm.at[pl.ds(pl.program_id(0) * 8, 8)]

        def inside(part_vmem):
            pltpu.make_async_copy(rows, part_vmem, sem).start()

        pl.run_scoped(inside, pltpu.VMEM((8, 128), jnp.float32))
        pltpu.make_async_copy(rows, out_vmem, sem).wait()

    def late(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(4,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )(x)

    finding = one(ran(late, COLUMN), "scope")
    assert finding.value == "memory is used after its scope at step 0"
    assert "part_vmem, sem).start()" in source(finding)


def test_results_that_have_other_shapes_than_the_references() -> None:
    finding = one(ran(product, *PRODUCT, reference=lambda lhs, rhs: (lhs @ rhs)[:8]), "reference")
    assert "(8, 256)" in finding.value


def test_a_reference_that_rounds_is_said_to_be_coarse() -> None:
    outcome = ran(product, *PRODUCT, reference=lambda lhs, rhs: (lhs @ rhs).astype(jnp.bfloat16))
    assert "bfloat16" in one(outcome, "reference").value
    assert not errors(outcome)


def test_what_raises_is_said() -> None:
    def raises(*_: Any) -> Any:
        raise ValueError("no such luck")

    assert "no such luck" in one(ran(product, *PRODUCT, reference=raises), "reference").value
    assert "no such luck" in one(ran(raises, *PRODUCT), "trace").value
