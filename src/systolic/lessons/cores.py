"""Run the kernels of `kernels/cores.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from systolic.chips import Chip
from systolic.lessons.kernels.cores import add_matrices, sine, triangle
from systolic.lessons.kernels.reductions import BOTH_CORES, ONE_CORE, sum_blocks
from systolic.lessons.lesson import Lesson, Part, Results
from systolic.lessons.reductions import LARGE, RUN
from systolic.lessons.runner import run_parts


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
    """Run additions, sines, sums and a triangle, on one core and on all of a device."""
    results = run_parts(PARTS, chips)
    return Lesson(
        lines=(
            *_on_two_cores(results, [chip for chip in chips if chip.cores_per_device > 1]),
            *_on_one_core(results, [chip for chip in chips if chip.cores_per_device == 1]),
            f"The sine on one core and on all: {_times(results, chips)}.",
        ),
        rows=results.rows,
        ok=results.ok,
    )


def _on_two_cores(results: Results, chips: Sequence[Chip]) -> tuple[str, ...]:
    if not chips:
        return ("No device here has two cores: see --chip v4,v5p.",)
    gains = {what: results.ratios(f"{what}, all cores", f"{what}, one core", chips) for what in COMPARED}
    return (
        f"Both cores against one: the sine, which computes, {gains['sine']}; the sum, which waits for one copy at a "
        f"time, {gains['sum']}; the addition, which waits for the HBM that they share, {gains['add']}.",
        f"Three steps: {gains['3 steps']}, since each core does two; the same rows in four: {gains['4 steps']}.",
        f"A triangle halved by rows: {gains['triangle']}; dealt out as first, last, second, …: {gains['dealt']}.",
    )


def _on_one_core(results: Results, chips: Sequence[Chip]) -> tuple[str, ...]:
    if not chips:
        return ()
    names = ", ".join(chip.name for chip in chips)
    pairs = [(f"{what}, all cores", f"{what}, one core", chip.name) for chip in chips for what in COMPARED]
    ratios = sorted({f"{ratio:.2f} ×" for pair in pairs if (ratio := results.ratio(*pair)) is not None})
    return (f"With one core a device ({names}) the same words leave each of these {', '.join(ratios)} as fast.",)


def _times(results: Results, chips: Sequence[Chip]) -> str:
    pairs = ((chip.name, *(results[f"sine, {cores}", chip.name].time_us for cores in CORES)) for chip in chips)
    return ", ".join(
        f"{name} {one_core:,.0f} and {all_:,.0f} µs" for name, one_core, all_ in pairs if one_core and all_
    )
