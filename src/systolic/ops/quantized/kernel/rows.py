"""Rows of lhs in the form that the matrix units take, made once for a block of rows, with their scales and sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.registers import Parts
from systolic.ops.quantized.kernel.bits import numbers_of_bits, rounded_to
from systolic.ops.quantized.kernel.copies import Copies
from systolic.ops.quantized.route import EVEN_FIRST_ROWS, Route
from systolic.ops.quantized.schedule import QuantizedSchedule
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES
from systolic.schedule.sizes import largest_divisor
from systolic.spec import LARGEST

_DOTS_TOGETHER = 8
_MAGNITUDE_BITS = 0x7FFFFFFF
_INFINITY_BITS = 0x7F800000
_COLUMNS_AT_ONCE = 512


def prepare_rows(copies: Copies, lhs_vmem: Any, spec: QuantizedSpec) -> None:
    """Wait for a block of rows, and fill the buffers that depend on it alone: rows, their scales and their sums."""
    refs, buffers, route = copies.refs, copies.buffers, copies.schedule.route
    if spec.quantize_lhs is not None:
        _quantize(copies, lhs_vmem, spec)
    else:
        _each_part(copies, lambda _: None)
    if spec.quantize_lhs is None and buffers.rows is not None:
        numbers = _numbers(lhs_vmem, spec.dtype_lhs) if route.rows_of_bits else lhs_vmem[...]
        buffers.rows[...] = numbers.astype(buffers.rows.dtype)
        if route.even_first:
            _put_even_first(buffers.rows)
    for block in range(spec.lhs_blocks):
        scales = refs.lhs_scales[:, block : block + 1]
        buffers.row_scales[block] = jnp.broadcast_to(scales, buffers.row_scales.shape[1:])
    if buffers.row_sums is not None:
        _sum_rows(lhs_vmem if buffers.rows is None else buffers.rows, buffers.row_sums, spec, copies.schedule)


def _each_part(copies: Copies, make: Callable[[Any], None]) -> None:
    """Wait for each part of a block of rows, and call a function with its place."""

    def numbered(parts: Parts, first: int, number: Any, carry: None) -> None:
        copies.wait_for_rows(first + number)
        make(parts.at(number))
        return carry

    first = 0
    for parts in copies.row_parts:
        if parts.how_many == 1:
            numbered(parts, first, 0, None)
        elif parts.how_many:
            lax.fori_loop(0, parts.how_many, functools.partial(numbered, parts, first), None)
        first += parts.how_many


def dot(left: Array, right: Array) -> Array:
    """Multiply with a sum in int32 for integers, else in float32."""
    total = jnp.int32 if jnp.issubdtype(left.dtype, jnp.integer) else jnp.float32
    return lax.dot_general(left, right, (((1,), (0,)), ((), ())), preferred_element_type=total)


def _numbers(lhs_vmem: Any, name: str) -> Array:
    """Convert rows of a float format that the chip does not take into numbers."""
    bits = lhs_vmem if lhs_vmem.dtype == jnp.int8 else lhs_vmem.bitcast(jnp.int8)
    return numbers_of_bits(bits[...], name)


def _quantize(copies: Copies, lhs_vmem: Any, spec: QuantizedSpec) -> None:
    """Quantize each row with its own scale, as `systolic.quantize` does, but by a product with the scale's inverse."""
    buffers = copies.buffers

    def chunk(at: Any) -> None:
        assert spec.quantize_lhs is not None  # the only callers quantize
        scales = _scales(lhs_vmem, at, spec)
        buffers.row_scales[0, at, :] = jnp.broadcast_to(scales, (scales.shape[0], LANES))
        inverse = 1.0 / scales
        for columns in _column_parts(spec.k):
            numbers = lhs_vmem[at, columns].astype(jnp.float32) * inverse
            buffers.rows[at, columns] = _as_format(
                numbers, spec.quantize_lhs, buffers.rows.dtype, copies.schedule.route
            )

    _each_part(copies, chunk)


def _scales(lhs_vmem: Any, at: Any, spec: QuantizedSpec) -> Array:
    """Return each row's largest magnitude over the format's largest number; NaN if a number is not finite.

    Magnitudes of floats are ordered like their bits: infinity follows the numbers, and NaN follows infinity. So one
    maximum of integers finds all of them.
    """
    parts = []
    for columns in _column_parts(spec.k):
        numbers = lhs_vmem[at, columns].astype(jnp.float32)
        bits: Any = pltpu.bitcast(numbers, jnp.int32) & _MAGNITUDE_BITS
        parts += [bits[:, first : first + LANES] for first in range(0, bits.shape[1], LANES)]
    largest = functools.reduce(jnp.maximum, parts)
    reach = jnp.where(largest >= _INFINITY_BITS, jnp.inf, pltpu.bitcast(largest, jnp.float32))
    reach = jnp.max(reach, axis=1, keepdims=True)
    assert spec.quantize_lhs is not None  # the only callers quantize
    scales = reach / LARGEST[spec.quantize_lhs]
    scales = jnp.where(scales >= jnp.finfo(jnp.float32).tiny, scales, 1.0)
    return jnp.where(reach == jnp.inf, jnp.nan, scales)


def _as_format(numbers: Array, name: str, dtype: Any, route: Route) -> Array:
    """Round numbers to a format, in the dtype in which they are multiplied."""
    if route.rows_of_bits:
        return rounded_to(numbers, name).astype(dtype)
    if name not in ("int8", "int4"):
        return numbers.astype(jnp.dtype(name)).astype(dtype)
    rounded = jnp.round(numbers)
    if not jnp.issubdtype(dtype, jnp.integer):
        return rounded.astype(dtype)
    integers = rounded.astype(jnp.int32).astype(jnp.int8)
    return integers.astype(dtype)


def _column_parts(k: int) -> list[slice]:
    return [slice(first, min(first + _COLUMNS_AT_ONCE, k)) for first in range(0, k, _COLUMNS_AT_ONCE)]


def _put_even_first(rows_vmem: Any) -> None:
    """Put the even ones of every 64 columns before the odd ones, by a product with one 1 in each row and column.

    That is exact. A number that is not finite makes a row NaN, as the sum of the row does in any case.
    """
    source, target = (lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in (0, 1))
    half = EVEN_FIRST_ROWS // 2
    place = target % EVEN_FIRST_ROWS
    permutation = source == target - place + 2 * (place % half) + place // half
    order = jnp.where(permutation, 1.0, 0.0).astype(rows_vmem.dtype)
    registers = rows_vmem.shape[1] // LANES
    together = largest_divisor(registers, 1, _DOTS_TOGETHER)

    def several(number: Any, carry: None) -> None:
        places = [pl.ds(pl.multiple_of((number * together + index) * LANES, LANES), LANES) for index in range(together)]
        result = [dot(rows_vmem[:, at], order) for at in places]
        for at, part_sum in zip(places, result, strict=True):
            rows_vmem[:, at] = part_sum.astype(rows_vmem.dtype)
        return carry

    lax.fori_loop(0, registers // together, several, None)


def _sum_rows(rows_vmem: Any, sums_vmem: Any, spec: QuantizedSpec, schedule: QuantizedSchedule) -> None:
    """Add up each block of a row by the matrix units: an offset of the weights adds it to the products.

    Several dots follow each other in straight code, so that one need not wait for another; not all of them, because
    the compiler keeps what each reads.
    """
    route = schedule.route
    width = min(route.depth, spec.block)
    ones = jnp.full((width, LANES), route.offset * route.unit, jnp.dtype(route.rows))
    parts = spec.block // width
    together = largest_divisor(parts, 1, _DOTS_TOGETHER)
    aligned = spec.block % LANES == 0 and width % LANES == 0

    def one_block(block: Any) -> None:
        def several(number: Any, total: Array) -> Array:
            for part_of_it in range(together):
                first = block * spec.block + (number * together + part_of_it) * width
                at = pl.multiple_of(first, LANES) if aligned and not isinstance(first, int) else first
                total = total + dot(rows_vmem[:, pl.ds(at, width)], ones)
            return total

        sums_vmem[block] = lax.fori_loop(0, parts // together, several, jnp.zeros(sums_vmem.shape[1:]))

    if not aligned:
        for block in range(spec.blocks):
            one_block(block)
        return
    at_once = largest_divisor(spec.blocks, 1, max(_DOTS_TOGETHER // parts, 1))

    def some_blocks(number: Any, carry: None) -> None:
        for block in range(at_once):
            one_block(number * at_once + block)
        return carry

    lax.fori_loop(0, spec.blocks // at_once, some_blocks, None)
