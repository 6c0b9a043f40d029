"""Cores · Two cores that look like one device.

    z = x + y        y = sin x        out = Σ_r x[r]        y = tril(L) @ x

A v4 or v5p chip has two TensorCores in one device ("megacore"), each with its own VMEM and units, and one HBM for both.
A kernel runs on one of them, unless `dimension_semantics` says of a grid axis that its steps are independent:
"parallel". Its steps are then dealt out, the first half to one core and the second to the other; an "arbitrary" axis
stays in order on one core. The other chips have one core a device (v7x has two, and shows each as a device of its own):
there the word changes nothing.

Twice the cores are twice the units, not twice HBM. What computes for long gains nearly 2; what waits for HBM gains
nothing, as one core alone can use all of it in the model; what waits for the latency of a single copy, as a sum with
its one input does, gains what the other core does meanwhile.

The later core counts, so the halves have to be alike, in two ways. Their number: each core does ceil(steps / 2), and if
that is one too many, the first step is done once more (seen in listings: the index is taken modulo the steps). And
their work: block row i of a lower triangular matrix takes i + 1 products of blocks, so the second half of the rows is
most of it. Dealt out as first, last, second, last but one, each core gets as much as the other; the index map does it.

Grid: (i, j) and (i,) over blocks; (i, j, r) for the sum; (i, kk) for the product, where steps above the diagonal do
nothing and ask for the block that is there already. In VMEM: a block of each array, twice.

The pages that this follows: Pallas TPU, "Pipelining", Megacore, whose exercise is the add and the sum; and "Writing TPU
kernels", multicore configurations, on uneven work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16, Float, Float32

from systolic.chips import Chip
from systolic.lessons.lesson import Lesson, Part, Results
from systolic.lessons.pipelining import add_matrices_kernel
from systolic.lessons.reductions import BOTH_CORES, LARGE, ONE_CORE, RUN, sum_blocks
from systolic.lessons.showing import show


def sine_kernel(
    x_vmem,  # [bm, n] float32
    y_vmem,  # the same
):
    """Some hundred instructions an element: bound by the core, not by HBM."""
    y_vmem[...] = jnp.sin(x_vmem[...])


def triangle_kernel(
    lhs_vmem,  # [bm, bm] bfloat16
    x_vmem,  # [bm, n] bfloat16
    out_vmem,  # [bm, n] float32
    *,
    row: Callable[[jax.Array], jax.Array],
):
    """Adds one product of blocks, on the diagonal of its lower half, above the diagonal none."""
    i, kk = row(pl.program_id(0)), pl.program_id(1)

    @pl.when(kk == 0)
    def _clear():
        out_vmem[...] = jnp.zeros_like(out_vmem)

    @pl.when(kk < i)
    def _below():
        out_vmem[...] += jnp.dot(lhs_vmem[...], x_vmem[...], preferred_element_type=jnp.float32)

    @pl.when(kk == i)
    def _diagonal():
        rows, columns = (lax.broadcasted_iota(jnp.int32, lhs_vmem.shape, axis) for axis in (0, 1))
        lower = jnp.where(columns <= rows, lhs_vmem[...], jnp.zeros_like(lhs_vmem))
        out_vmem[...] += jnp.dot(lower, x_vmem[...], preferred_element_type=jnp.float32)


def add_matrices(
    x: Float32[Array, "m n"], y: Float32[Array, "m n"], *, semantics: str = "parallel", bm: int = 512, bn: int = 1024
) -> Float32[Array, "m n"]:
    """x + y by blocks; with "parallel" on every core of the device."""
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    return pl.pallas_call(
        add_matrices_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm, x.shape[1] // bn),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=_params(semantics, semantics),
        name="add_matrices",
    )(x, y)


def sine(x: Float32[Array, "m n"], *, semantics: str = "parallel", bm: int = 256) -> Float32[Array, "m n"]:
    """sin x by blocks of `bm` whole rows."""
    block = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        sine_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm,),
        in_specs=[block],
        out_specs=block,
        compiler_params=_params(semantics),
        name="sine",
    )(x)


def triangle(
    lhs: BFloat16[Array, "m m"],
    x: BFloat16[Array, "m n"],
    *,
    semantics: str = "parallel",
    dealt: bool = False,
    bm: int = 512,
) -> Float32[Array, "m n"]:
    """tril(lhs) @ x; `dealt`: the rows of blocks in the order first, last, second, last but one, …"""
    (m, n), count = x.shape, lhs.shape[0] // bm

    def row(i: jax.Array) -> jax.Array:
        return jnp.where(i % 2 == 0, i // 2, count - 1 - i // 2) if dealt else i

    return pl.pallas_call(
        functools.partial(triangle_kernel, row=row),
        grid=(count, count),
        in_specs=[
            # Above the diagonal the block of the diagonal again, which is there: no copy.
            pl.BlockSpec((bm, bm), lambda i, kk: (row(i), jnp.minimum(kk, row(i)))),
            pl.BlockSpec((bm, n), lambda i, kk: (jnp.minimum(kk, row(i)), 0)),
        ],
        out_specs=pl.BlockSpec((bm, n), lambda i, kk: (row(i), 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        compiler_params=_params(semantics, "arbitrary"),
        name="triangle",
    )(lhs, x)


def _params(*semantics: str) -> pltpu.CompilerParams:
    return pltpu.CompilerParams(dimension_semantics=semantics)  # pyright: ignore[reportArgumentType]


def _added(x: Array, y: Array) -> Array:
    return x + y


def _summed(x: Array) -> Array:
    return x.sum(axis=0)


def _triangle(lhs: Float[Array, "m m"], x: Float[Array, "m n"]) -> Float[Array, "m n"]:
    return jnp.tril(lhs) @ x


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ADD, SINE = (_float32(8192, 4096),) * 2, (_float32(8192, 1024),)
SHORT = (_float32(1536, 1024),)  # three blocks of 512 rows, or four of 384
TRIANGLE = tuple(jax.ShapeDtypeStruct((4096, n), jnp.bfloat16) for n in (4096, 1024))


def _parts(cores: str, semantics: str) -> tuple[Part, ...]:
    add, sin, product = (functools.partial(fn, semantics=semantics) for fn in (add_matrices, sine, triangle))
    summed = functools.partial(sum_blocks, semantics=ONE_CORE if semantics == "arbitrary" else BOTH_CORES)
    parts = (
        Part(name=f"add, {cores}", fn=add, args=ADD, reference=_added),
        Part(name=f"sine, {cores}", fn=sin, args=SINE, reference=jnp.sin),
        Part(name=f"sum, {cores}", fn=summed, args=LARGE, run_args=RUN, reference=_summed),
        Part(name=f"3 steps, {cores}", fn=functools.partial(sin, bm=512), args=SHORT, reference=jnp.sin),
        Part(name=f"4 steps, {cores}", fn=functools.partial(sin, bm=384), args=SHORT, reference=jnp.sin),
        Part(name=f"triangle, {cores}", fn=product, args=TRIANGLE, reference=_triangle),
        Part(name=f"dealt, {cores}", fn=functools.partial(product, dealt=True), args=TRIANGLE, reference=_triangle),
    )
    # The kernels are the same, and run once: in the order that "parallel" leaves open.
    return parts if semantics == "parallel" else tuple(replace(part, run_args=()) for part in parts)


CORES = ("one core", "all cores")
PARTS = (*_parts(CORES[0], "arbitrary"), *_parts(CORES[1], "parallel"))
COMPARED = ("sine", "sum", "add", "3 steps", "4 steps", "triangle", "dealt")


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Additions, sines, sums and a triangle, on one core and on all of a device."""
    found = show(PARTS, chips)
    return Lesson(
        name="cores",
        title="Cores: what dimension_semantics brings where a device has two",
        lines=(
            *_on_two_cores(found, [chip for chip in chips if chip.cores_per_device > 1]),
            *_on_one_core(found, [chip for chip in chips if chip.cores_per_device == 1]),
            f"The sine on one core and on all: {_times(found, chips)}.",
        ),
        rows=found.rows,
        ok=found.ok,
    )


def _on_two_cores(found: Results, chips: Sequence[Chip]) -> tuple[str, ...]:
    if not chips:
        return ("No device here has two cores: see --chip v4,v5p.",)
    gains = {what: found.ratios(f"{what}, all cores", f"{what}, one core", chips) for what in COMPARED}
    return (
        f"Both cores against one: the sine, which computes, {gains['sine']}; the sum, which waits for one copy at a "
        f"time, {gains['sum']}; the addition, which waits for the HBM that they share, {gains['add']}.",
        f"Three steps: {gains['3 steps']}, since each core does two; the same rows in four: {gains['4 steps']}.",
        f"A triangle halved by rows: {gains['triangle']}; dealt out as first, last, second, …: {gains['dealt']}.",
    )


def _on_one_core(found: Results, chips: Sequence[Chip]) -> tuple[str, ...]:
    if not chips:
        return ()
    names = ", ".join(chip.name for chip in chips)
    pairs = [(f"{what}, all cores", f"{what}, one core", chip.name) for chip in chips for what in COMPARED]
    ratios = sorted({f"{ratio:.2f} ×" for pair in pairs if (ratio := found.ratio(*pair)) is not None})
    return (f"With one core a device ({names}) the same words leave each of these {', '.join(ratios)} as fast.",)


def _times(found: Results, chips: Sequence[Chip]) -> str:
    pairs = ((chip.name, *(found[f"sine, {cores}", chip.name].time_us for cores in CORES)) for chip in chips)
    return ", ".join(f"{name} {one:,.0f} and {all_:,.0f} µs" for name, one, all_ in pairs if one and all_)


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "cores", *sys.argv[1:]]))
