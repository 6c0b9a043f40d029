"""Runs of anybody's kernels in interpret mode: sound kernels have no faults, and what was assumed is said."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check_runs import EXAMPLES, PLAIN, PRODUCT, TILES, array, errors, example, one, product, ran
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.running import run_in_worker
from systolic.chips import chip
from systolic.compiler import NamedFunction, WorkerPool
from systolic.timing import Call

# --- sound kernels ---------------------------------------------------------------------------------------------------

SIZES = (array(256, 512), array(512, 256))
SMALL = {"tile_m": 128, "tile_k": 256, "tile_n": 128}
REFERENCE = example("products.py:product_reference")
SLOW = pytest.mark.slow  # like its neighbours


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fn", "args", "reference"),
    [
        pytest.param(example("products.py:v1"), SIZES, REFERENCE, id="v1"),
        pytest.param(
            example("products.py:v2", tile_m=128, tile_n=128), SIZES, REFERENCE, id="v2", marks=pytest.mark.slow
        ),
        pytest.param(example("products.py:v3", **SMALL), SIZES, REFERENCE, id="v3", marks=SLOW),
        pytest.param(example("products.py:v4", **SMALL), SIZES, REFERENCE, id="v4", marks=SLOW),
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
            marks=SLOW,
        ),
    ],
)
def test_two_cores_share_parallel_axes(fn: Any, args: Any, reference: Any) -> None:
    assert not errors(ran(fn, *args, reference=reference, on="v5p", seeds=(0, 1)))


@pytest.mark.exhaustive
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
    assert "assumed to be zero" in one(outcome, "run").value
    assert not errors(outcome)


def test_what_interpret_mode_cannot_run_is_no_fault_of_the_kernels() -> None:
    args = array(128, 128, dtype="int4"), array(128, 128, dtype="int4")
    finding = one(ran(example("products.py:v5", **TILES), *args), "run")
    assert finding.grade == "warning"
    assert finding.value.startswith("it was not run: interpret mode cannot")


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


@pytest.mark.exhaustive
def test_seeds_make_a_run_repeatable() -> None:
    first, again = (ran(product, *PRODUCT, reference=PLAIN, seeds=(5,)).summary for _ in range(2))
    other = ran(product, *PRODUCT, reference=PLAIN, seeds=(6,)).summary
    assert first.error == again.error != other.error


def test_large_arguments_are_scaled_and_that_is_said() -> None:
    outcome = ran(example("planted_faults.py:racing_copy", **TILES), array(4096, 4096), array(4096, 4096), seeds=(0,))
    assert outcome.changes == ("4096 → 384",)
    assert outcome.summary.sizes[0] == "bfloat16[384,384] for bfloat16[4096,4096]"
    one(outcome, "race")


@pytest.mark.exhaustive
def test_a_worker_runs_functions_by_name() -> None:
    fn = NamedFunction(f"{EXAMPLES}/planted_faults.py:uninitialised_accumulator")
    reference = NamedFunction(f"{EXAMPLES}/planted_faults.py:reference")
    job = functools.partial(run_in_worker, reference=reference, seeds=(0, 1))
    with WorkerPool(max_workers=1, time_limit_s=120) as pool:
        call = Call.described(fn, (array(256, 512), array(512, 256)), chip("v5e"))
        outcome = pool.submit(job, call).result()
    one(outcome, "nan")
    assert outcome.summary.seeds == (0, 1)
