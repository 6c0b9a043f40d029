"""Run the kernels of `kernels/numbers_on_chip.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from systolic.chips import Chip
from systolic.compiler import WorkerPool
from systolic.lessons.kernels.numbers_on_chip import (
    PRODUCTS,
    multiply,
)
from systolic.lessons.ladder import RUNGS
from systolic.lessons.lesson import Lesson, Part, Results, everywhere
from systolic.lessons.runner import run_parts
from systolic.schedule import Tiles


def product_reference(lhs: Array, rhs: Array) -> Array:
    """Return the product in the dtype of the arguments."""
    return lhs @ rhs


def no_int8(chip: Chip) -> str:
    """v4 multiplies no integers."""
    return "" if "int8" in chip.dtypes else f"{chip.name} has no product of int8"


SIZE, RUN = 4096, (512, 1024, 512)
TILES = Tiles(tile_m=512, tile_k=1024, tile_n=1024)  # of the ladder's v5 for bfloat16
SUMS = {"sum in bfloat16": ("v4", "bfloat16"), "sum in float32": ("v5", "bfloat16"), "int8": ("v5", "int8")}


def _shapes(m: int, k: int, n: int, dtype: str) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)


PARTS = (
    *(
        Part(
            name=name,
            fn=functools.partial(multiply, product=product),
            args=_shapes(SIZE, SIZE, SIZE, "float32"),
            run_args=_shapes(*RUN, "float32"),
            reference=product_reference,
        )
        for name, product in PRODUCTS.items()
    ),
    *(
        Part(
            name=name,
            fn=functools.partial(
                RUNGS[rung].multiply, tiles=TILES, dtype_out="int32" if dtype == "int8" else "bfloat16"
            ),
            args=_shapes(SIZE, SIZE, SIZE, dtype),
            run_args=_shapes(512, 2048, 1024, dtype),
            reference=product_reference,
            lacks=no_int8 if dtype == "int8" else everywhere,
        )
        for name, (rung, dtype) in SUMS.items()
    ),
)


def relative_error(result: Array | np.ndarray, expected: np.ndarray) -> float:
    """Return the root mean square of the error, relative to the result's."""
    return float(np.sqrt(np.mean((np.asarray(result, np.float64) - expected) ** 2) / np.mean(expected**2)))


def errors(m: int = 256, k: int = 8192, n: int = 256, bk: int = 128) -> dict[str, float]:
    """Return relative errors of products of standard normal float32 in interpret mode, by the name of the part.

    Sums are rounded k/bk times where they are kept in bfloat16. Operands are rounded to bfloat16, or scaled to int8,
    before; errors of sums are relative to the product of the rounded ones, errors of int8 to the product of all bits.
    """
    random = np.random.default_rng(0)
    lhs, rhs = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    tiles, interpret = Tiles(tile_m=m, tile_k=bk, tile_n=n), pltpu.InterpretParams()
    exact = lhs.astype(np.float64) @ rhs
    errors = {
        name: relative_error(
            multiply(jnp.asarray(lhs), jnp.asarray(rhs), product=product, bm=m, bk=bk, bn=n, interpret=interpret), exact
        )
        for name, product in PRODUCTS.items()
    }
    rounded = [jnp.asarray(operand, jnp.bfloat16) for operand in (lhs, rhs)]
    expected = np.asarray(rounded[0], np.float64) @ np.asarray(rounded[1], np.float64)
    for name in ("sum in bfloat16", "sum in float32"):
        result = RUNGS[SUMS[name][0]].multiply(*rounded, tiles=tiles, dtype_out="bfloat16", interpret=interpret)
        errors[name] = relative_error(result, expected)
    scales = [127 / np.abs(operand).max() for operand in (lhs, rhs)]
    integers = [np.round(operand * scale).astype(np.int8) for operand, scale in zip((lhs, rhs), scales, strict=True)]
    sums = RUNGS["v5"].multiply(*integers, tiles=tiles, dtype_out="int32", interpret=interpret)
    errors["int8"] = relative_error(np.asarray(sums) / (scales[0] * scales[1]), exact)
    return errors


def largest_sums(k: int = 2**17) -> tuple[int, int]:
    """Return the sum of k − 1 products of −128 by −128 in int32, and of k, by the ladder's v5 in interpret mode."""
    lhs = np.full((32, k), -128, np.int8)
    lhs[0, -1] = 0
    tiles = Tiles(tile_m=32, tile_k=2**13, tile_n=128)
    rhs = np.full((k, 128), -128, np.int8)
    sums = RUNGS["v5"].multiply(lhs, rhs, tiles=tiles, dtype_out="int32", interpret=pltpu.InterpretParams())
    return int(sums[0, 0]), int(sums[1, 0])


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run passes of float32, sums in two dtypes, and int8: error and time of each."""
    results = run_parts(PARTS, chips)
    with WorkerPool(max_workers=2) as pool:  # its JAX runs on the CPU, even if there is another device
        error, sums = pool.submit(errors, label="errors"), pool.submit(largest_sums, label="sums of int8")
        error, (fits, wraps) = error.result(), sums.result()
    alone = [chip for chip in chips if chip.cores_per_device == 1]  # the ladder's v4 leaves a second core idle
    steps = 8192 // 128
    slower = {name: results.ratios("float32 dot", name, chips) for name in ("three passes", "six passes", "HIGHEST")}
    waits = [(chip.name, results["float32 dot", chip.name].waiting) for chip in chips]
    return Lesson(
        lines=(
            f"float32, relative error: one pass {error['one pass']:.1e}, three {error['three passes']:.1e}, six "
            f"{error['six passes']:.1e}. Interpret mode shows {error['float32 dot']:.1e} for a dot that is one pass "
            "on the chip.",
            f"Time of one pass, the default, against three by hand: {slower['three passes']} as fast; against six by "
            f"hand: {slower['six passes']}; against HIGHEST: {slower['HIGHEST']}.",
            "All copy the same bytes, for which one pass waits: "
            f"{', '.join(f'{chip} {wait:.0%}' for chip, wait in waits if wait is not None)} of its time.",
            f"Work of the matrix units, against one pass: three {_work(results, 'three passes', chips)}; HIGHEST "
            f"{_work(results, 'HIGHEST', chips)}.",
            f"A bfloat16 sum rounded {steps} times errs by {error['sum in bfloat16']:.1e}, rounded once by "
            f"{error['sum in float32']:.1e}; its time at {SIZE}³ against that of a float32 sum, where a device is one "
            f"core: {results.ratios('sum in bfloat16', 'sum in float32', alone) or 'none of these chips'} as fast.",
            f"int8 with one scale a matrix errs by {error['int8']:.1e}, bfloat16 by {error['one pass']:.1e}; "
            f"int8 is {results.ratios('int8', 'sum in float32', chips)} as fast.",
            f"Sums of −128·−128 in int32: {fits:,} for k = {2**17 - 1:,}, {wraps:,} for one more.",
        ),
        rows=tuple({**row, "relative_error": error.get(str(row["part"]))} for row in results.rows),
        ok=results.ok and fits == (2**17 - 1) * 2**14 and wraps == -(2**31),
    )


def _work(results: Results, part: str, chips: Sequence[Chip]) -> str:
    """Return busy time of the matrix units, relative to one pass."""
    sentences = []
    for chip in chips:
        mine, exact = results[part, chip.name], results["float32 dot", chip.name]
        if mine.matrix_busy and mine.time_us and exact.matrix_busy and exact.time_us:
            sentences.append(
                f"{chip.name} {mine.matrix_busy * mine.time_us / (exact.matrix_busy * exact.time_us):.2f} ×"
            )
    return ", ".join(sentences)
