"""Kernels of SparseCores: copies directed by a list, and vector operations on subcores."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, faulty, sound
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

DMA = pltpu.SemaphoreType.DMA
CORES, SUBCORES, LANES = 2, 16, 8  # of a v6e
EACH = 8  # rows of a subcore
ROWS = CORES * SUBCORES * EACH
WIDTH = 128
# Operations across lanes are compiled as they stand: layouts are not inferred.
VECTORS = pltpu.CompilerParams(needs_layout_passes=False)


def on_subcores(body, out, *operands, scratch=(), **mesh):
    """Run a body on every subcore."""
    subcores = plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore", **mesh)
    call: Any = pl.kernel(body, out_type=out, mesh=subcores, scratch_types=scratch, compiler_params=VECTORS)
    return call(*operands)


def _mine(rows=EACH):
    """The rows of this subcore."""
    return pl.ds((jax.lax.axis_index("core") * SUBCORES + jax.lax.axis_index("subcore")) * rows, rows)


def rows_gathered(table, index, *, fault=""):
    """Rows of a table, by their numbers."""

    def body(table_hbm, index_hbm, out_hbm, index_vmem, rows_vmem, sem):
        pltpu.sync_copy(index_hbm.at[_mine()], index_vmem)
        copy = pltpu.async_copy(table_hbm.at[index_vmem], rows_vmem, sem)
        if fault != "used before it is there":
            copy.wait()
        place = pl.ds(_mine().start * (fault != "all to one place"), EACH)
        pltpu.sync_copy(rows_vmem, out_hbm.at[place])
        if fault == "used before it is there":
            copy.wait()

    scratch = [pltpu.VMEM((EACH,), jnp.int32), pltpu.VMEM((EACH, table.shape[1]), table.dtype), DMA]
    return on_subcores(body, array(ROWS, table.shape[1]), table, index, scratch=scratch)


def rows_scattered(x, index, *, fault=""):
    """Rows, written to the places of a list."""

    def body(x_hbm, index_hbm, out_hbm, index_vmem, rows_vmem, sem):
        pltpu.sync_copy(index_hbm.at[_mine()], index_vmem)
        pltpu.sync_copy(x_hbm.at[_mine()], rows_vmem)
        copy = pltpu.async_copy(rows_vmem, out_hbm.at[index_vmem], sem)
        if fault != "never waited for":
            copy.wait()

    scratch = [pltpu.VMEM((EACH,), jnp.int32), pltpu.VMEM((EACH, x.shape[1]), x.dtype), DMA]
    return on_subcores(body, array(*x.shape), x, index, scratch=scratch)


def counted(x, *, fault=""):
    """The count of each number below 64 in a subcore's part, one row per subcore."""
    part = x.shape[0] // (CORES * SUBCORES)

    def body(x_hbm, out_hbm, x_vmem, counts_vmem):
        pltpu.sync_copy(x_hbm.at[_mine(part)], x_vmem)

        @pl.loop(0, 64 if fault != "not cleared" else 0, step=LANES)
        def _(at):
            counts_vmem[pl.ds(at, LANES)] = jnp.zeros(LANES, jnp.int32)

        @pl.loop(0, part, step=LANES)
        def _(at):
            for lane in range(LANES):  # two lanes may have one number
                mask = jnp.arange(LANES) == lane
                plsc.addupdate_scatter(counts_vmem, [x_vmem[pl.ds(at, LANES)]], jnp.ones(LANES, jnp.int32), mask=mask)

        pltpu.sync_copy(counts_vmem, out_hbm.at[_mine(1).start])

    out = array(CORES * SUBCORES, 64, dtype="int32")
    scratch = [pltpu.VMEM((part,), jnp.int32), pltpu.VMEM((64,), jnp.int32)]
    return on_subcores(body, out, x, scratch=scratch)


def counted_plain(x):
    return (x.reshape(CORES * SUBCORES, -1, 1) == jnp.arange(64)).sum(axis=1)


def summed_up(x, *, fault=""):
    """The running sum of each row."""

    def body(x_hbm, out_hbm, x_vmem):
        pltpu.sync_copy(x_hbm.at[_mine(1).start], x_vmem)

        @plsc.parallel_loop(0, x.shape[1], LANES, carry=jnp.int32(0))
        def _(at, before):
            sums = plsc.cumsum(x_vmem[pl.ds(at, LANES)]) + before
            x_vmem[pl.ds(at, LANES)] = sums
            return jnp.max(sums) if fault != "forgets what came before" else before

        pltpu.sync_copy(x_vmem, out_hbm.at[_mine(1).start])

    scratch = [pltpu.VMEM(x.shape[1:], jnp.int32)]
    return on_subcores(body, x, x, scratch=scratch)


def increased(x, *, fault=""):
    """Every element plus 1, by one pipeline that all subcores share."""

    def body(x_hbm, out_hbm):
        def block(x_vmem, out_vmem):
            @pl.loop(0, WIDTH, step=LANES)
            def _(at):
                place = (0, pl.ds(at, LANES))
                out_vmem[place] = x_vmem[place] + 1

        # With one axis alone both cores do all of the work.
        axes = "subcore" if fault == "done twice" else ("core", "subcore")
        pltpu.emit_pipeline(
            block,
            grid=(x.shape[0],),
            in_specs=[pl.BlockSpec((1, WIDTH), lambda i: (i, 0))],
            out_specs=[pl.BlockSpec((1, WIDTH), lambda i: (i, 0))],
            core_axis_name=axes,
            dimension_semantics=(pltpu.PARALLEL,),
        )(x_hbm, out_hbm)

    return on_subcores(body, x, x)


def _numbers(low, high, size):
    return np.random.default_rng(0).integers(low, high, size).astype(np.int32)


TABLE, INDEX = array(100, WIDTH), _numbers(0, 100, ROWS)
X, PLACES = array(ROWS, WIDTH), np.random.default_rng(1).permutation(ROWS).astype(np.int32)
NUMBERS = _numbers(0, 64, CORES * SUBCORES * 16)
RUNNING = _numbers(0, 1000, (CORES * SUBCORES, 32))
BLOCKS = array(CORES * SUBCORES, WIDTH, dtype="int32")

SOUND: tuple[Case, ...] = (
    sound(rows_gathered, TABLE, INDEX, reference=lambda t, i: t[i], chip="v6e"),
    sound(rows_gathered, TABLE, INDEX, reference=None, name="no reference", chip="v6e"),
    sound(rows_scattered, X, PLACES, reference=lambda x, at: jnp.zeros_like(x).at[at].set(x), chip="v6e"),
    sound(counted, NUMBERS, reference=counted_plain, chip="v6e"),
    sound(summed_up, RUNNING, reference=lambda x: jnp.cumsum(x, axis=1), chip="v6e"),
    sound(increased, BLOCKS, reference=lambda x: x + 1, chip="v6e"),
)

FAULTS: tuple[Case, ...] = (
    faulty(rows_gathered, "used before it is there", TABLE, INDEX, reference=None, rules="race order", chip="v6e"),
    faulty(rows_gathered, "all to one place", TABLE, INDEX, reference=None, rules="race order nan", chip="v6e"),
    faulty(rows_scattered, "never waited for", X, PLACES, reference=None, rules="semaphore race", chip="v6e"),
    faulty(counted, "not cleared", NUMBERS, reference=None, rules="uninitialised", chip="v6e"),
    faulty(summed_up, "forgets what came before", RUNNING, reference=lambda x: jnp.cumsum(x, axis=1),
           rules="wrong-result", chip="v6e"),
    faulty(increased, "done twice", BLOCKS, reference=None, rules="race", at_least="warning", chip="v6e"),
)  # fmt: skip
