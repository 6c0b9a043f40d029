"""The routes that a chip has for a product, and their choice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from systolic.chips import Chip
from systolic.ops.quantized.route import EVEN_FIRST_ROWS, Codes, Made, Route
from systolic.ops.quantized.route_cycles import ROWS_TYPES, route_cycles, unit_cycles, unit_shape, vector_cycles
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES
from systolic.spec import format_bytes

# The largest exact float32 sums of products of int8 by int8, by int4, and by a code of four bits, as units add them.
_FLOAT32_INTEGERS = 2**24
_LARGEST_PRODUCTS = {"int8": 128 * 128, "int4": 128 * 8}
_LARGEST_CODED = 128 * 15
_MAX_ROWS_EVEN_FIRST = 64  # more rows take longer in the matrix units than their weights take to be made

# e4m3 with the exponent's bias b has the subnormals i · 2^(1 - b - 3): 2^-13 of e4m3b11fnuz, 2^-9 of e4m3fn.
_CODES: dict[str, tuple[Codes, ...]] = {
    "int4": (
        Codes(dtype="float8_e4m3b11fnuz", unit=2.0**-13, offset=8.0),
        Codes(dtype="float8_e4m3fn", unit=2.0**-9, offset=8.0),
    ),
    "float4_e2m1fn": (Codes(dtype="float8_e5m2", unit=2.0**-14),),
}


def route_of(spec: QuantizedSpec, rows: int, chip: Chip) -> Route:
    """Return the route that keeps a core busy for the shortest time for these rows; the first of equal ones."""
    return min(routes(spec, chip), key=lambda route: route_cycles(route, spec, rows, spec.k, spec.n, chip))


def routes(spec: QuantizedSpec, chip: Chip) -> list[Route]:
    """Return every route that the chip has, those that round least first."""
    beside_floats = _beside_bfloat16(spec, chip)
    if spec.row_format is None:
        return [*beside_floats, *_even_first(beside_floats, spec, chip)]
    supported = chip.dot_operands.floats | chip.dot_operands.integers
    exact = [
        replace(_exact(route, spec), rows_of_bits=spec.row_format not in supported)
        for route in beside_floats
        if route.scaled == "sums"
    ]
    return [
        *(
            Route(
                pushed=rows,
                made=production,
                codes=None,
                scaled="sums",
                depth=_depth(spec.block, unit_shape(rows, chip.machine)[0]),
                rows=rows,
                sums="int32",
            )
            for rows, production in _integer_ways(spec, chip)
        ),
        *(
            replace(route, rows=route.pushed)
            for route in exact
            if _takes_float8(spec.row_format, route.pushed) and _is_native(route.pushed, chip)
        ),
        *(route for route in exact if not (route.offset and _largest_coded(spec) > _FLOAT32_INTEGERS)),
    ]


def _even_first(routes: list[Route], spec: QuantizedSpec, chip: Chip) -> Iterator[Route]:
    """Put codes of even rows before odd ones if the vector units take longer than matrix units and HBM.

    Columns of lhs are put in that order by a product with ones and zeros, and kept in addition.
    """
    m, k, n = spec.m, spec.k, spec.n
    copied = format_bytes(spec.dtype_rhs, k * n) / chip.machine.hbm_bytes_per_s * chip.machine.clock_hz
    for route in routes:
        fits = route.offset and route.depth % EVEN_FIRST_ROWS == 0 and m <= _MAX_ROWS_EVEN_FIRST and spec.blocks > 1
        longest = vector_cycles(route, spec, m, k, n, chip) > unit_cycles(route, m, k, n, chip)
        if fits and longest and route_cycles(route, spec, m, k, n, chip) > copied:
            yield replace(route, even_first=True)


def _integer_ways(spec: QuantizedSpec, chip: Chip) -> Iterator[tuple[str, Made]]:
    """Return the dtypes in which units take two sides of integers: the same for both, if need be the wider one."""
    formats = (spec.row_format, spec.dtype_rhs)
    for dtype in ("int4", "int8"):
        fits = spec.sums_integers and (dtype == "int8" or formats == ("int4", "int4"))
        if fits and dtype in chip.dot_operands.integer_pairs and ROWS_TYPES[dtype] in chip.machine.mxu_rows_per_cycle:
            yield dtype, "stored" if spec.dtype_rhs == dtype else "cast"


def _takes_float8(row_format: str, pushed: str) -> bool:
    """True if rows of a format are exact in the float8 of the weights: e4m3 holds int4 as well."""
    return pushed.startswith("float8") and (row_format == pushed or (row_format, pushed) == ("int4", "float8_e4m3fn"))


def _is_native(dtype: str, chip: Chip) -> bool:
    """True if rows in this dtype go through the units faster than in bfloat16."""
    rates = chip.machine.mxu_rows_per_cycle
    return dtype not in chip.emulated_dtypes and rates.get(ROWS_TYPES.get(dtype, ""), 0) > rates["bf16"]


def _exact(route: Route, spec: QuantizedSpec) -> Route:
    """Return a route that cuts sums of integers past float32's exact range into parts within it."""
    if route.made != "cast" or not spec.sums_integers:
        return route
    return replace(
        route, sums="int32" if _LARGEST_PRODUCTS[spec.dtype_rhs] * spec.block > _FLOAT32_INTEGERS else "float32"
    )


def _largest_coded(spec: QuantizedSpec) -> int:
    """Return the largest sum of a block of integers by codes with an offset, in float32; 0 without such codes."""
    return _LARGEST_CODED * spec.block if spec.row_format == "int8" else 0


def _beside_bfloat16(spec: QuantizedSpec, chip: Chip) -> list[Route]:
    unit_dtypes, dtype = chip.dot_operands.floats, spec.dtype_rhs
    ways: list[tuple[Made, str, Codes | None]] = []
    codes = next((candidate for candidate in _CODES.get(dtype, ()) if candidate.dtype in unit_dtypes), None)
    if codes:
        ways.append(("codes", codes.dtype, codes))
    if dtype in unit_dtypes:
        ways.append(("stored", dtype, None))
    if dtype in ("int8", "int4") or (dtype in unit_dtypes and dtype != "float8_e4m3b11fnuz"):
        ways.append(("cast", "bfloat16", None))
    if codes and dtype == "float4_e2m1fn":
        ways.append(("cast codes", "bfloat16", codes))
    if not ways:
        ways.append(("bits", "bfloat16", None))
    sums = [
        Route(
            pushed=pushed, made=production, codes=code, scaled="sums", depth=_depth(spec.block, chip.machine.mxu_rows)
        )
        for production, pushed, code in ways
    ]
    # The vector units multiply bfloat16; scales of whole columns cost nothing after the sum. Quantized rows of a format
    # that the kernel does not take come as bfloat16, with their own scales; their products are exact as well.
    weights = [
        Route(pushed=pushed, made=production, codes=code, scaled="weights", depth=_weights_depth(spec, chip))
        for production, pushed, code in ways
        if pushed == "bfloat16" and spec.blocks > 1 and not spec.scales_rows
    ]
    return sums + weights


def _depth(block: int, mxu_rows: int) -> int:
    """Return the largest divisor of a block that a unit loads at once, in whole registers if there is one."""
    return block if block <= mxu_rows else next(index for index in range(mxu_rows, 0, -1) if block % index == 0)


def _weights_depth(spec: QuantizedSpec, chip: Chip) -> int:
    """Return the depth of whole blocks that fill a unit, or else of registers, that divides k."""
    several = (math.lcm(spec.block, rows) for rows in (max(chip.machine.mxu_rows, LANES), LANES))
    return next((rows for rows in several if spec.k % rows == 0), spec.k)
