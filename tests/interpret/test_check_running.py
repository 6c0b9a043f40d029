"""Runs of anybody's kernels in interpret mode: planted faults are found, sound kernels have none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.finding import Finding
from systolic.checking.running import RunOutcome, run_checks, run_in_worker
from systolic.chips import chip
from systolic.compiler import NamedFunction, WorkerPool
from systolic.compiler.named import named_function

EXAMPLES = Path(__file__).parents[2] / "examples"
TILES = {"tile_m": 128, "tile_k": 128, "tile_n": 128}


def array(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def example(text: str, **keywords: Any) -> Callable[..., Any]:
    return functools.partial(named_function(f"{EXAMPLES}/{text}"), **keywords)


def ran(fn: Callable[..., Any], *args: Any, reference: Any = None, on: str = "v5e", **keywords: Any) -> RunOutcome:
    return run_checks(fn, args, chip=chip(on), reference=reference, **keywords)


def one(outcome: RunOutcome, rule: str) -> Finding:
    found = [finding for finding in outcome.findings if finding.rule == rule]
    assert len(found) == 1, outcome.findings
    return found[0]


def errors(outcome: RunOutcome) -> list[Finding]:
    return [finding for finding in outcome.findings if finding.grade == "error"]


PRODUCT = (array(256, 384), array(384, 256))
PLAIN = example("planted_faults.py:reference")


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
    outcome = ran(example("planted_faults.py:racing_copy", **TILES), *PRODUCT, reference=PLAIN)
    race = one(outcome, "race")
    assert race.value.startswith("lhs_vmem: a ")
    line = int(race.where.split(":")[1].split()[0])
    assert "copy.start()" in (EXAMPLES / "planted_faults.py").read_text().splitlines()[line - 1]
    one(outcome, "order")


def test_a_sum_that_nobody_clears() -> None:
    outcome = ran(example("planted_faults.py:uninitialised_accumulator", **TILES), *PRODUCT, reference=PLAIN)
    assert "100.0%" in one(outcome, "nan").value


def product(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    mask: bool = True,
    rhs_column: Callable[[Any, Any], Any] = lambda i, j: j,
    acc: Any = jnp.float32,
    cleared: bool = True,
    semantics: Any = ("parallel", "parallel", "arbitrary"),
) -> jax.Array:
    """lhs @ rhs in tiles of 128, as right as it is asked to be."""

    def body(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        kk = pl.program_id(2)
        if cleared:

            @pl.when(kk == 0)
            def _():
                acc_vmem[...] = jnp.zeros_like(acc_vmem)

        one, other = lhs_vmem[...], rhs_vmem[...]
        if mask:
            left = lhs.shape[1] - kk * 128
            one = jnp.where(lax.broadcasted_iota(jnp.int32, one.shape, 1) < left, one, 0)
            other = jnp.where(lax.broadcasted_iota(jnp.int32, other.shape, 0) < left, other, 0)
        total = jnp.dot(one, other, preferred_element_type=jnp.promote_types(acc, jnp.float32))
        acc_vmem[...] = (acc_vmem[...] + total).astype(acc)

        @pl.when(kk == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    (m, k), n = lhs.shape, rhs.shape[1]
    if jnp.issubdtype(lhs.dtype, jnp.integer):
        acc = jnp.int32
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), acc if acc == jnp.int32 else jnp.float32),
        grid=(pl.cdiv(m, 128), pl.cdiv(n, 128), pl.cdiv(k, 128)),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((128, 128), lambda i, j, kk: (kk, rhs_column(i, j))),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((128, 128), acc)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
        name="product",
    )(lhs, rhs)


RAGGED = (array(200, 300), array(300, 250))


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


def test_a_running_sum_in_bfloat16_is_a_loss_of_precision_and_no_wrong_result() -> None:
    outcome = ran(functools.partial(product, acc=jnp.bfloat16), array(256, 1024), array(1024, 256), reference=PLAIN)
    assert one(outcome, "precision").grade == "warning"
    assert not errors(outcome)


def test_integers_made_of_what_nobody_wrote() -> None:
    args = array(128, 256, dtype="int8"), array(256, 128, dtype="int8")
    outcome = ran(functools.partial(product, cleared=False, mask=False), *args)
    assert "with the largest integers and with zeros" in one(outcome, "uninitialised").value


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


def test_a_copy_that_nobody_waits_for() -> None:
    assert not ran(copied, COLUMN, reference=lambda x: x).findings
    outcome = ran(functools.partial(copied, wait=False), COLUMN, reference=lambda x: x)
    assert {"race", "semaphore", "nan"} <= {finding.rule for finding in errors(outcome)}


def test_a_wait_for_a_copy_that_nobody_starts() -> None:
    finding = one(ran(functools.partial(copied, start=False), COLUMN), "deadlock")
    line = int(finding.where.split(":")[1].split()[0])
    assert "copy.wait()" in Path(__file__).read_text().splitlines()[line - 1]
    assert not errors(ran(copied, COLUMN, reference=lambda x: x))  # and the next run is not disturbed


def test_a_slice_that_ends_outside() -> None:
    finding = one(ran(functools.partial(copied, rows=4), COLUMN), "out-of-bounds")
    assert finding.value == "x_vmem: a read of [4:12, 0:128] in a buffer of shape (8, 128)"
    assert "test_check_running.py" in finding.where


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


# --- sound kernels ---------------------------------------------------------------------------------------------------

SIZES = (array(256, 512), array(512, 256))
SMALL = {"tile_m": 128, "tile_k": 256, "tile_n": 128}
REFERENCE = example("products.py:product_reference")


@pytest.mark.parametrize(
    ("fn", "args", "reference"),
    [
        pytest.param(example("products.py:v1"), SIZES, REFERENCE, id="v1"),
        pytest.param(example("products.py:v2", tile_m=128, tile_n=128), SIZES, REFERENCE, id="v2"),
        pytest.param(example("products.py:v3", **SMALL), SIZES, REFERENCE, id="v3"),
        pytest.param(example("products.py:v4", **SMALL), SIZES, REFERENCE, id="v4"),
        pytest.param(example("products.py:v5", **SMALL), SIZES, REFERENCE, id="v5"),
        pytest.param(
            example("products.py:v5", **SMALL),
            (array(256, 512, dtype="int8"), array(512, 256, dtype="int8")),
            REFERENCE,
            id="v5 in int8",
        ),
        pytest.param(
            example("products.py:v5", **SMALL),
            (array(256, 512, dtype="float32"), array(512, 256, dtype="float32")),
            REFERENCE,
            id="v5 in float32",
        ),
        pytest.param(
            example("products.py:jax_example", block_m=128, block_k=256, block_n=128), SIZES, REFERENCE, id="jax"
        ),
        pytest.param(example("products.py:mine"), SIZES, REFERENCE, id="mine"),
        pytest.param(example("products.py:mine"), (array(300, 1000), array(1000, 200)), REFERENCE, id="mine, ragged"),
        pytest.param(
            example("products.py:grouped", **TILES),
            (array(512, 256), array(4, 256, 256), np.array([100, 0, 400, 12], np.int32)),
            example("products.py:grouped_reference"),
            id="grouped",
        ),
        pytest.param(
            example("products.py:attention", block_q=128, block_kv=128),
            (array(1, 2, 256, 128),) * 3,
            example("products.py:attention_reference"),
            id="attention",
        ),
    ],
)
def test_sound_kernels_have_no_errors(fn: Any, args: Any, reference: Any) -> None:
    outcome = ran(fn, *args, reference=reference, seeds=(0, 1))
    assert not errors(outcome)
    assert outcome.summary.ran
    assert outcome.summary.compared
    assert outcome.summary.error is not None


@pytest.mark.parametrize(
    ("fn", "args", "reference"),
    [
        pytest.param(example("products.py:v5", **SMALL), SIZES, REFERENCE, id="v5"),
        pytest.param(
            example("products.py:attention", block_q=128, block_kv=128),
            (array(1, 2, 256, 128),) * 3,
            example("products.py:attention_reference"),
            id="attention",
        ),
    ],
)
def test_two_cores_share_parallel_axes(fn: Any, args: Any, reference: Any) -> None:
    assert not errors(ran(fn, *args, reference=reference, on="v5p", seeds=(0, 1)))


def test_rounding_the_sum_at_each_step_is_said() -> None:
    sizes = array(256, 1024), array(1024, 256)
    assert one(ran(example("products.py:v4", **SMALL), *sizes, reference=REFERENCE), "precision").grade == "warning"
    assert not ran(example("products.py:v5", **SMALL), *sizes, reference=REFERENCE).findings


def test_float32_dots_are_said_to_be_coarser_on_a_tpu() -> None:
    sizes = array(128, 256, dtype="float32"), array(256, 128, dtype="float32")
    outcome = ran(example("products.py:v5", **SMALL), *sizes, reference=REFERENCE)
    assert one(outcome, "precision").grade == "note"
    assert "in full" in one(outcome, "precision").value


def test_sizes_of_groups_that_were_not_given_are_said_to_be_zeros() -> None:
    args = array(256, 128), array(2, 128, 128), array(2, dtype="int32")
    outcome = ran(example("products.py:grouped", **TILES), *args)
    assert "zeros" in one(outcome, "run").value
    assert not errors(outcome)


def test_what_interpret_mode_cannot_run_is_no_fault_of_the_kernels() -> None:
    args = array(128, 128, dtype="int4"), array(128, 128, dtype="int4")
    finding = one(ran(example("products.py:v5", **TILES), *args), "run")
    assert finding.grade == "note"
    assert "interpret mode cannot run it" in finding.value


def test_pipelines_of_their_own_may_copy_whole_registers_at_an_end() -> None:
    def added(x: jax.Array, y: jax.Array) -> jax.Array:
        def body(x_hbm, y_hbm, out_hbm):
            def add(x_vmem, y_vmem, out_vmem):
                out_vmem[...] = x_vmem[...] + y_vmem[...]

            block = pl.BlockSpec((64, 256), lambda i: (i, 0))
            grid = (pl.cdiv(x.shape[0], 64),)
            pltpu.emit_pipeline(add, grid=grid, in_specs=[block] * 2, out_specs=[block])(x_hbm, y_hbm, out_hbm)

        whole = pl.BlockSpec(memory_space=pl.ANY)
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, out_shape=out, in_specs=[whole] * 2, out_specs=whole)(x, y)

    args = array(300, 256, dtype="float32"), array(300, 256, dtype="float32")
    assert not ran(jax.jit(added), *args, reference=jnp.add).findings


def test_arguments_may_be_trees_and_numbers() -> None:
    def scaled(pair: dict[str, jax.Array], factor: float) -> dict[str, jax.Array]:
        return {"product": product(pair["lhs"], pair["rhs"]) * factor}

    def plain(pair: dict[str, jax.Array], factor: float) -> dict[str, jax.Array]:
        return {"product": pair["lhs"] @ pair["rhs"] * factor}

    outcome = ran(scaled, {"lhs": PRODUCT[0], "rhs": PRODUCT[1]}, 3.0, reference=plain, seeds=(0,))
    assert not outcome.findings
    assert outcome.summary.error is not None


def test_seeds_make_a_run_repeatable() -> None:
    first, again = (ran(product, *PRODUCT, reference=PLAIN, seeds=(5,)).summary for _ in range(2))
    other = ran(product, *PRODUCT, reference=PLAIN, seeds=(6,)).summary
    assert first.error == again.error != other.error


def test_large_arguments_are_scaled_and_that_is_said() -> None:
    outcome = ran(example("planted_faults.py:racing_copy", **TILES), array(4096, 4096), array(4096, 4096), seeds=(0,))
    assert outcome.changes == ("4096 → 384",)
    assert outcome.summary.sizes[0] == "bfloat16[384,384] for bfloat16[4096,4096]"
    one(outcome, "race")


def test_a_worker_runs_functions_by_name() -> None:
    fn = NamedFunction(f"{EXAMPLES}/planted_faults.py:uninitialised_accumulator")
    reference = NamedFunction(f"{EXAMPLES}/planted_faults.py:reference")
    job = functools.partial(run_in_worker, reference=reference, seeds=(0, 1))
    with WorkerPool(max_workers=1, time_limit_s=120) as pool:
        outcome = pool.submit(job, fn, (array(256, 512), array(512, 256)), (None, None), chip("v5e")).result()
    one(outcome, "nan")
    assert outcome.summary.seeds == (0, 1)
