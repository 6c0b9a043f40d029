"""Kernels that carry a value from step to step: pipelines inside of kernels, scratch memory, and writes in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from checked.case import Case, array, faulty, sound
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ANY = pl.BlockSpec(memory_space=pl.ANY)
TILE = 128


def _index_maps(outermost):
    """Return the index maps of lhs, rhs and the output, with the summed axis last or first."""
    if outermost:
        return lambda kk, i, j: (i, kk), lambda kk, i, j: (kk, j), lambda kk, i, j: (i, j)
    return lambda i, j, kk: (i, kk), lambda i, j, kk: (kk, j), lambda i, j, kk: (i, j)


def _blocks(outermost):
    return [pl.BlockSpec((TILE, TILE), index_map) for index_map in _index_maps(outermost)]


def pipelined_product(lhs, rhs, *, fault=""):
    """lhs @ rhs by a pipeline inside of the kernel, added up in its output's window."""
    outermost = fault in ("the sum comes back", "the sum comes back, and is never cleared")

    def body(lhs_hbm, rhs_hbm, out_hbm):
        def step(lhs_vmem, rhs_vmem, out_vmem):
            @pl.when(pl.program_id(0 if outermost else 2) == (1 if fault == "cleared at the second step" else 0))
            def _():
                if fault != "the sum comes back, and is never cleared":
                    out_vmem[...] = jnp.zeros_like(out_vmem)

            out_vmem[...] += lhs_vmem[...] @ rhs_vmem[...]

        steps = lhs.shape[0] // TILE, rhs.shape[1] // TILE, lhs.shape[1] // TILE
        *inputs, output = _blocks(outermost)
        grid = (steps[2], *steps[:2]) if outermost else steps
        pltpu.emit_pipeline(step, grid=grid, in_specs=inputs, out_specs=[output])(lhs_hbm, rhs_hbm, out_hbm)

    shape = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.float32)
    return pl.pallas_call(body, out_shape=shape, in_specs=[ANY] * 2, out_specs=ANY)(lhs, rhs)


def overwritten_blocks(x):
    """Twice x by a pipeline that returns to each block and writes it again: wasteful, and right."""

    def body(x_hbm, out_hbm):
        def step(x_vmem, out_vmem):
            out_vmem[...] = x_vmem[...] * 2

        block = pl.BlockSpec((8, x.shape[1]), lambda again, i: (i, 0))
        grid = 2, x.shape[0] // 8
        pltpu.emit_pipeline(step, grid=grid, in_specs=[block], out_specs=[block])(x_hbm, out_hbm)

    return pl.pallas_call(body, out_shape=x, in_specs=[ANY], out_specs=ANY)(x)


def scratch_product(lhs, rhs, *, fault=""):
    """lhs @ rhs, added up in scratch memory."""

    def body(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        first = pl.program_id(2) == 0
        if fault == "cleared for the first block alone":
            first &= (pl.program_id(0) == 0) & (pl.program_id(1) == 0)

        @pl.when(first)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += lhs_vmem[...] @ rhs_vmem[...]

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...]

    *inputs, output = _blocks(False)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.float32),
        grid=(lhs.shape[0] // TILE, rhs.shape[1] // TILE, lhs.shape[1] // TILE),
        in_specs=inputs,
        out_specs=output,
        scratch_shapes=[pltpu.VMEM((TILE, TILE), jnp.float32)],
    )(lhs, rhs)


def running_sum(x):
    """Each row plus the sum of all rows up to its block's end; scratch memory carries the sum on purpose."""

    def body(x_vmem, out_vmem, sum_vmem):
        @pl.when(pl.program_id(0) == 0)
        def _():
            sum_vmem[...] = jnp.zeros_like(sum_vmem)

        sum_vmem[...] += jnp.sum(x_vmem[...], axis=0, keepdims=True)
        out_vmem[...] = x_vmem[...] + sum_vmem[...]

    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(x.shape[0] // 8,),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((1, x.shape[1]), x.dtype)],
    )(x)


def running_plain(x):
    sums = jnp.cumsum(x.reshape(-1, 8, x.shape[1]).sum(axis=1), axis=0)
    return x + sums.repeat(8, axis=0)


def updated(x, y, *, distance=0):
    """x + y in place; each block of x is read `distance` blocks earlier, where it may be overwritten already."""

    def body(x_vmem, y_vmem, out_vmem):
        out_vmem[...] = x_vmem[...] + y_vmem[...]

    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    first = pl.BlockSpec((8, x.shape[1]), lambda i: (jnp.maximum(i - distance, 0), 0))
    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(x.shape[0] // 8,),
        in_specs=[first, block],
        out_specs=block,
        input_output_aliases={0: 0},
    )(x, y)


def _renamed(name, **options):
    def fn(x, y, *, fault=""):
        return updated(x, y, **options)

    fn.__name__ = name
    return fn


SQUARES = array(256, 384), array(384, 256)
X = array(64, 128)

SOUND: tuple[Case, ...] = (
    sound(pipelined_product, *SQUARES, reference=jnp.matmul),
    sound(pipelined_product, *SQUARES, reference=None, name="no reference"),
    sound(overwritten_blocks, X, reference=lambda x: x * 2),
    sound(overwritten_blocks, X, reference=None, name="no reference"),
    sound(scratch_product, *SQUARES, reference=jnp.matmul),
    sound(scratch_product, *SQUARES, reference=None, name="no reference"),
    sound(running_sum, X, reference=running_plain),
    sound(running_sum, X, reference=None, name="no reference"),
    sound(updated, X, X, reference=jnp.add, distance=0),
)

FAULTS: tuple[Case, ...] = (
    faulty(pipelined_product, "the sum comes back", *SQUARES, reference=None, rules="revisited-output"),
    faulty(pipelined_product, "the sum comes back", *SQUARES, reference=jnp.matmul, rules="revisited-output"),
    faulty(pipelined_product, "the sum comes back, and is never cleared", *SQUARES, reference=None,
           rules="revisited-output nan uninitialised"),
    faulty(pipelined_product, "cleared at the second step", *SQUARES, reference=jnp.matmul, rules="wrong-result"),
    faulty(scratch_product, "cleared for the first block alone", *SQUARES, reference=None, rules="uninitialised",
           at_least="warning"),
    faulty(scratch_product, "cleared for the first block alone", *SQUARES, reference=jnp.matmul, rules="wrong-result"),
    faulty(_renamed("updated", distance=1), "reads the block before", X, X, reference=None, rules="order"),
    faulty(_renamed("updated", distance=2), "reads the block before the last", X, X, reference=None, rules="order"),
)  # fmt: skip
