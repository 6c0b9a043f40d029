"""Kernels of SparseCores in TPU interpret mode, as `check` runs it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check_runs import errors, ran
from checked import subcores
from checked.case import Case
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from systolic.checking.interpreting import Conditions, Interpreted, Interpreter
from systolic.chips import chip

CASES = {case.name: case for case in (*subcores.SOUND, *subcores.FAULTS)}


def interpreted(fn, *args: np.ndarray) -> Interpreted:
    return Interpreter(fn, chip("v6e")).run(args, Conditions())


def run(case: Case) -> set[str]:
    return {found.rule for found in errors(ran(case.fn, *case.args, reference=case.reference, on="v6e", seeds=(0,)))}


def test_rows_go_there_and_back() -> None:
    x = np.arange(subcores.ROWS * 8, dtype=np.float32).reshape(-1, 8)
    at = subcores.PLACES

    def there_and_back(x: jax.Array, at: jax.Array) -> jax.Array:
        return subcores.rows_gathered(subcores.rows_scattered(x, at), at)

    result = interpreted(there_and_back, x, at)
    np.testing.assert_array_equal(result.outputs[0], x)
    assert not result.raced


def across_lanes(x, mask):
    """Cross-lane operations of a vector, one row each."""

    def body(x_hbm, mask_hbm, out_hbm, x_vmem, mask_vmem, out_vmem):
        pltpu.sync_copy(x_hbm, x_vmem)
        pltpu.sync_copy(mask_hbm, mask_vmem)
        value, known = x_vmem[...], mask_vmem[...] != 0
        out_vmem[0] = plsc.cumsum(value, mask=known)
        out_vmem[1] = plsc.cummax(value, mask=known)
        out_vmem[2] = plsc.load_gather(x_vmem, [7 - jnp.arange(8)])
        out_vmem[3], out_vmem[4] = plsc.sort_key_val(value, jnp.arange(8))
        out_vmem[5] = plsc.all_reduce_population_count(known)
        out_vmem[6] = plsc.all_reduce_ffs(known)
        out_vmem[7] = jnp.zeros(8, jnp.int32)
        plsc.store_compressed(out_vmem.at[7], value, mask=known)
        low, high = plsc.unpack(plsc.bitcast(value, jnp.int16), format=plsc.PackFormat.INTERLEAVED)
        out_vmem[8] = (low & 0xFFFF) | (high << 16)
        packed = plsc.pack(low, high, format=plsc.PackFormat.INTERLEAVED)
        out_vmem[9] = plsc.bitcast(packed, jnp.int32)
        out_vmem[10] = jnp.where(known, plsc.load_expanded(x_vmem.at[...], mask=known), 0)
        plsc.store_scatter(out_vmem, [jnp.full(8, 11), 7 - jnp.arange(8)], value)
        pltpu.sync_copy(out_vmem, out_hbm)

    vector, out = pltpu.VMEM((8,), jnp.int32), jax.ShapeDtypeStruct((12, 8), jnp.int32)
    scratch = [vector, vector, pltpu.VMEM((12, 8), jnp.int32)]
    return subcores.on_subcores(body, out, x, mask, scratch=scratch, num_cores=1, num_subcores=1)


@pytest.mark.filterwarnings("ignore:plsc.bitcast is deprecated")  # from jax 0.12 on
def test_operations_across_lanes() -> None:
    x = np.array([5, 3, 100_000, 2, 8, 3, 1, 70_000], np.int32)
    mask = np.array([0, 1, 1, 0, 1, 0, 0, 1], np.int32)
    known = mask.astype(bool)
    (got,) = interpreted(across_lanes, x, mask).outputs
    expected = [
        np.cumsum(np.where(known, x, 0)),
        np.array([5, 3, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000]),
        x[::-1],
        np.sort(x),
        np.argsort(x, stable=True),
        np.full(8, 4),
        np.full(8, 1),
        np.array([3, 100_000, 8, 70_000, 0, 0, 0, 0]),
        x,
        x,
        np.array([0, 5, 3, 0, 100_000, 0, 0, 2]),
        x[::-1],
    ]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("rows_gathered: used before it is there, no reference", {"race", "nan"}),
        ("counted: not cleared, no reference", {"uninitialised"}),
    ],
)
def test_a_fault_is_shown(name: str, rules: set[str]) -> None:
    assert run(CASES[name]) == rules


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in subcores.SOUND])
def test_no_sound_kernel_is_accused(name: str) -> None:
    assert not run(CASES[name])


def test_a_store_outside_of_a_buffer_leaves_nothing_defined() -> None:
    def stored(x: jax.Array) -> jax.Array:
        def body(x_hbm, out_hbm, x_vmem):
            pltpu.sync_copy(x_hbm, x_vmem)
            found = plsc.load_gather(x_vmem, [jnp.arange(8) - 1])
            plsc.store_scatter(x_vmem, [jnp.arange(8) + 8], found)
            plsc.store_scatter(x_vmem, [jnp.arange(8) + 12], found, mask=jnp.arange(8) < 4)
            pltpu.sync_copy(x_vmem.at[pl.ds(0, 8)], out_hbm.at[0])
            pltpu.sync_copy(x_vmem.at[pl.ds(8, 8)], out_hbm.at[1])
            plsc.store_scatter(x_vmem, [jnp.arange(8) + 12], found)
            pltpu.sync_copy(x_vmem.at[pl.ds(0, 8)], out_hbm.at[2])

        out, scratch = jax.ShapeDtypeStruct((3, 8), jnp.float32), [pltpu.VMEM((16,), jnp.float32)]
        return subcores.on_subcores(body, out, x, scratch=scratch, num_cores=1, num_subcores=1)

    x = np.arange(16, dtype=np.float32)
    before, behind, after = interpreted(stored, x).outputs[0]
    np.testing.assert_array_equal(before, x[:8])
    np.testing.assert_array_equal(behind, [np.nan, 0, 1, 2, np.nan, 0, 1, 2])
    assert np.isnan(after).all()


def shared(x):
    def body(x_hbm, out_hbm, x_shared):
        pltpu.sync_copy(x_hbm, x_shared)
        pltpu.sync_copy(x_shared, out_hbm)

    return subcores.on_subcores(body, x, x, scratch=[pltpu.VMEM_SHARED(x.shape, x.dtype)])


def met(x):
    def body(x_hbm, out_hbm):
        plsc.subcore_barrier()
        pltpu.sync_copy(x_hbm, out_hbm)

    return subcores.on_subcores(body, x, x)


def added(x):
    def body(x_hbm, out_hbm, x_vmem):
        pltpu.sync_copy(x_hbm, x_vmem)
        pltpu.sync_copy(x_vmem, out_hbm, add=True)

    return subcores.on_subcores(body, x, x, scratch=[pltpu.VMEM(x.shape, x.dtype)])


@pytest.mark.parametrize(
    ("fn", "reason"),
    [(shared, "subcores of a SparseCore share"), (met, "barrier"), (added, "a copy that adds")],
    ids=["shared memory", "a barrier", "an addition"],
)
def test_what_is_not_run(fn, reason: str) -> None:
    outcome = ran(fn, jax.ShapeDtypeStruct((8, 64), jnp.float32), on="v6e")
    (found,) = (each for each in outcome.findings if each.rule == "run")
    assert found.grade == "warning"
    assert reason in found.value
    assert not outcome.summary.ran
