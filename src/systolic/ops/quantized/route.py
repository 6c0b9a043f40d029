"""How a quantized weight gets into the matrix units: the cheapest way that is exact, of those that a chip has.

Rows of lhs are bfloat16, which holds every number of every format, or in a narrower dtype where rows are quantized and
the units take it at a higher rate: int8, int4, or a float8 beside weights of the same kind.

Beside bfloat16 rows the units of most chips take weights in eight bits, which are loaded in half the time. What is
stored in four bits becomes such weights by a few operations on bits, eight bits a weight:

- int4: the sixteen smallest numbers of e4m3, codes 0 to 15, are equally far apart, also where they are subnormal. So
  the code w + 8 stands for (w + 8) · unit, and what the 8 adds is the sum of a row of lhs times a constant, which the
  kernel takes off. Both are exact; the sum in float32 is of numbers up to twice as large.
- fp4: sign, exponent and mantissa of e2m1 lie in those of e5m2 as they are, and subnormals are subnormal: e5m2 times
  2^14 is the number.

Numbers of a float that a chip does not take at all are put together as float32 of their bits, and pushed as bfloat16.

A scale belongs to a block of k. Either the sums of each block are multiplied by it: that rounds least, but a unit loads
no more than a block at a time. Or the weights are, in bfloat16, which rounds each of them once more: not where rows are
quantized, whose products are to be exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from systolic.chips import Chip, MachineModel
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES, REGISTER_BYTES
from systolic.spec import dtype_bytes, format_bytes

Made = Literal["stored", "cast", "codes", "cast codes", "bits"]
Scaled = Literal["sums", "weights"]

# Names of operand types in the listings of the compiler, whose rates the machine models know.
_ROWS_TYPES = {"bfloat16": "bf16", "int8": "s8", "int4": "s4", "float8_e4m3fn": "f8", "float8_e5m2": "f8"}
# What float32 sums hold exactly, as units use it; of products of int8 by int8, by int4, and by a code of four bits.
_FLOAT32_INTEGERS = 2**24
_LARGEST_PRODUCTS = {"int8": 128 * 128, "int4": 128 * 8}
_LARGEST_CODED = 128 * 15
_LEAST_ROWS = 16  # of bfloat16, that go through a unit at once
_VECTOR_SLOTS = 4
# Counted in listings of libtpu 0.0.42.1 for products of 16 to 128 rows.
# Operations on a register of what is pushed: to unpack it and to place the bits of a code; to cast it, or to make
# bfloat16 of it by way of float32 where vector units have none; to multiply it by its scale, likewise.
_CODE_OPERATIONS = {"int4": 3, "float4_e2m1fn": 5}
_CAST_OPERATIONS, _CAST_BY_FLOAT32_OPERATIONS = 1, 5
_SCALE_OPERATIONS, _SCALE_IN_FLOAT32_OPERATIONS = 1, 7
# And on a register of sums, to scale and add it, and to take off what the offset of weights adds.
_SUM_OPERATIONS, _OFFSET_OPERATIONS = 2, 1
_EVEN_FIRST_OPERATIONS = 2
_MOST_ROWS_EVEN_FIRST = 64  # more rows take longer in the matrix units than their weights take to be made
EVEN_FIRST_ROWS = 64  # of int4 in a register, in two of eight bits
_NOT_BESIDE = 0.2  # of the shorter of both, which the compiler does not place beside the longer one, at a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """Numbers of four bits as codes of a format of eight: `value = code / unit - offset`, as numbers of that format."""

    dtype: str
    unit: float
    offset: float = 0.0


# e4m3 with the exponent's bias b has the subnormals i · 2^(1 - b - 3): 2^-13 of e4m3b11fnuz, 2^-9 of e4m3fn.
_CODES: dict[str, tuple[Codes, ...]] = {
    "int4": (
        Codes(dtype="float8_e4m3b11fnuz", unit=2.0**-13, offset=8.0),
        Codes(dtype="float8_e4m3fn", unit=2.0**-9, offset=8.0),
    ),
    "float4_e2m1fn": (Codes(dtype="float8_e5m2", unit=2.0**-14),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What is loaded into the matrix units, how it is made, and what is multiplied by the scales.

    Attributes:
      pushed: dtype of the weights in the units.
      made: as they are stored, by a cast, as codes of four bits, by a cast of such codes, or out of their bits.
      codes: of four bits; None where there are none.
      depth: rows of the weight that one dot sums over: of one block where sums are scaled.
      rows: dtype in which rows of lhs go through the units.
      rows_of_bits: whether rows are of a float that the chip does not take, so that they are made out of their bits.
      even_first: whether of every 64 rows of the weight the even ones come before the odd ones, and columns of lhs too:
        so each half of a byte becomes a code without being unpacked.
      sums: int32 where products are summed as integers, by the units or, of exact parts, behind them; else float32.
    """

    pushed: str
    made: Made
    codes: Codes | None
    scaled: Scaled
    depth: int
    rows: str = "bfloat16"
    rows_of_bits: bool = False
    even_first: bool = False
    sums: Literal["float32", "int32"] = "float32"

    @property
    def unit(self) -> float:
        """The number that stands for 1 among the weights that are pushed."""
        return self.codes.unit if self.codes else 1.0

    @property
    def offset(self) -> float:
        """What is added to every weight, to be taken off the sums."""
        return self.codes.offset if self.codes and self.made == "codes" else 0.0

    def __str__(self) -> str:
        how = {
            "stored": f"pushed as {self.pushed}, as they are stored",
            "cast": f"cast to {self.pushed} in VMEM",
            "codes": f"pushed as codes of {self.pushed}",
            "cast codes": f"cast to {self.pushed} in VMEM by way of {self.codes.dtype if self.codes else ''}",
            "bits": f"made {self.pushed} in VMEM out of their bits",
        }
        rows = "" if self.rows == "bfloat16" else f"rows are multiplied as {self.rows}, "
        rows += "even columns of rows before odd ones, " if self.even_first else ""
        return f"{rows}weights are {how[self.made]}, scales multiply {self.scaled}"


def route_of(spec: QuantizedSpec, rows: int, chip: Chip) -> Route:
    """The route that keeps a core busy for the shortest time, of equal ones that which rounds least.

    Args:
      rows: of lhs that meet a weight in VMEM.
    """
    return min(routes(spec, chip), key=lambda route: route_cycles(route, spec, rows, spec.k, spec.n, chip))


def routes(spec: QuantizedSpec, chip: Chip) -> list[Route]:
    """Every route that the chip has, those that round least first."""
    beside_floats = _beside_bfloat16(spec, chip)
    if spec.row_format is None:
        return [*beside_floats, *_even_first(beside_floats, spec, chip)]
    known = chip.dot_operands.floats | chip.dot_operands.integers
    exact = [
        replace(_exact(route, spec), rows_of_bits=spec.row_format not in known)
        for route in beside_floats
        if route.scaled == "sums"
    ]
    return [
        *(
            Route(
                pushed=rows,
                made=made,
                codes=None,
                scaled="sums",
                depth=_depth(spec.block, _unit(rows, chip.machine)[0]),
                rows=rows,
                sums="int32",
            )
            for rows, made in _integer_ways(spec, chip)
        ),
        *(
            replace(route, rows=route.pushed)
            for route in exact
            if _takes_float8(spec.row_format, route.pushed) and _is_native(route.pushed, chip)
        ),
        *(route for route in exact if not (route.offset and _largest_coded(spec) > _FLOAT32_INTEGERS)),
    ]


def _even_first(routes: list[Route], spec: QuantizedSpec, chip: Chip) -> Iterator[Route]:
    """Codes of even rows before those of odd ones, where the vector units take longer than matrix units and HBM.

    Columns of lhs are put in that order by a product with ones and zeros, and kept beside it.
    """
    m, k, n = spec.m, spec.k, spec.n
    copied = format_bytes(spec.dtype_rhs, k * n) / chip.machine.hbm_bytes_per_s * chip.machine.clock_hz
    for route in routes:
        fits = route.offset and route.depth % EVEN_FIRST_ROWS == 0 and m <= _MOST_ROWS_EVEN_FIRST and spec.blocks > 1
        longest = _vector_cycles(route, spec, m, k, n, chip) > _unit_cycles(route, m, k, n, chip)
        if fits and longest and route_cycles(route, spec, m, k, n, chip) > copied:
            yield replace(route, even_first=True)


def _integer_ways(spec: QuantizedSpec, chip: Chip) -> Iterator[tuple[str, Made]]:
    """What units take of two sides of integers: both in the same dtype, the wider one of the two if need be."""
    formats = (spec.row_format, spec.dtype_rhs)
    for dtype in ("int4", "int8"):
        fits = spec.sums_integers and (dtype == "int8" or formats == ("int4", "int4"))
        if fits and dtype in chip.dot_operands.integer_pairs and _ROWS_TYPES[dtype] in chip.machine.mxu_rows_per_cycle:
            yield dtype, "stored" if spec.dtype_rhs == dtype else "cast"


def _takes_float8(row_format: str, pushed: str) -> bool:
    """Whether rows of a format are exact in the float8 of the weights: e4m3 holds int4 as well."""
    return pushed.startswith("float8") and (row_format == pushed or (row_format, pushed) == ("int4", "float8_e4m3fn"))


def _is_native(dtype: str, chip: Chip) -> bool:
    """Whether rows in this dtype go through the units faster than those in bfloat16."""
    rates = chip.machine.mxu_rows_per_cycle
    return dtype not in chip.emulated_dtypes and rates.get(_ROWS_TYPES.get(dtype, ""), 0) > rates["bf16"]


def _exact(route: Route, spec: QuantizedSpec) -> Route:
    """A route of which sums of integers past what float32 holds are cut into parts that it does."""
    if route.made != "cast" or not spec.sums_integers:
        return route
    return replace(
        route, sums="int32" if _LARGEST_PRODUCTS[spec.dtype_rhs] * spec.block > _FLOAT32_INTEGERS else "float32"
    )


def _largest_coded(spec: QuantizedSpec) -> int:
    """The largest sum of a block of integers by codes with an offset, which stay float32; 0 if they are none."""
    return _LARGEST_CODED * spec.block if spec.row_format == "int8" else 0


def _beside_bfloat16(spec: QuantizedSpec, chip: Chip) -> list[Route]:
    taken, dtype = chip.dot_operands.floats, spec.dtype_rhs
    ways: list[tuple[Made, str, Codes | None]] = []
    codes = next((one for one in _CODES.get(dtype, ()) if one.dtype in taken), None)
    if codes:
        ways.append(("codes", codes.dtype, codes))
    if dtype in taken:
        ways.append(("stored", dtype, None))
    if dtype in ("int8", "int4") or (dtype in taken and dtype != "float8_e4m3b11fnuz"):
        ways.append(("cast", "bfloat16", None))
    if codes and dtype == "float4_e2m1fn":
        ways.append(("cast codes", "bfloat16", codes))
    if not ways:
        ways.append(("bits", "bfloat16", None))
    sums = [
        Route(pushed=pushed, made=made, codes=its, scaled="sums", depth=_depth(spec.block, chip.machine.mxu_rows))
        for made, pushed, its in ways
    ]
    # The vector units multiply bfloat16; scales of whole columns cost nothing after the sum. Quantized rows of a format
    # that the kernel does not take come as bfloat16, with scales of their own; their products are exact as well.
    weights = [
        Route(pushed=pushed, made=made, codes=its, scaled="weights", depth=_weights_depth(spec, chip))
        for made, pushed, its in ways
        if pushed == "bfloat16" and spec.blocks > 1 and not spec.scales_rows
    ]
    return sums + weights


def route_cycles(route: Route, spec: QuantizedSpec, rows: int, k: int, n: int, chip: Chip) -> float:
    """Cycles of a core for this many rows, k and n of a product, where neither copies nor code around them matter."""
    units, vector = _unit_cycles(route, rows, k, n, chip), _vector_cycles(route, spec, rows, k, n, chip)
    return max(units, vector) + _NOT_BESIDE * min(units, vector)


def _unit_cycles(route: Route, rows: int, k: int, n: int, chip: Chip) -> float:
    machine = chip.machine
    unit_rows, unit_columns = _unit(route.pushed, machine)
    deep = min(route.depth, unit_rows)
    tiles = k / deep * -(-n // unit_columns) / machine.mxu_count
    pushes = format_bytes(route.pushed, deep * unit_columns) / REGISTER_BYTES / max(unit_columns // LANES, 1)
    taken = max(rows, _LEAST_ROWS) / rows_per_cycle(route, chip)
    return tiles * max(taken + pushes * machine.weight_push_cycles, pushes * chip.code_costs.push_bundles)


def _vector_cycles(route: Route, spec: QuantizedSpec, rows: int, k: int, n: int, chip: Chip) -> float:
    made = k * n * dtype_bytes(route.pushed) / REGISTER_BYTES * _made_operations(route, spec, chip)
    vector = made / _VECTOR_SLOTS
    if route.scaled == "sums" and spec.blocks > 1:
        each = _SUM_OPERATIONS + (_OFFSET_OPERATIONS if route.offset else 0)
        vector += k / spec.block * max(rows, 8) * n / 1024 * each / _VECTOR_SLOTS
    return vector + (k * n / 1024 * chip.code_costs.bits_register_cycles if route.made == "bits" else 0)


def _made_operations(route: Route, spec: QuantizedSpec, chip: Chip) -> int:
    """Operations on a register of what is pushed, once for all rows that meet it."""
    by_float32 = route.pushed == "bfloat16" and not chip.vector_bfloat16
    operations = 0
    if route.made in ("codes", "cast codes"):
        operations += _EVEN_FIRST_OPERATIONS if route.even_first else _CODE_OPERATIONS[spec.dtype_rhs]
    if route.made in ("cast", "cast codes"):
        operations += _CAST_BY_FLOAT32_OPERATIONS if by_float32 else _CAST_OPERATIONS
    if route.scaled == "weights":
        operations += _SCALE_IN_FLOAT32_OPERATIONS if by_float32 else _SCALE_OPERATIONS
    return operations


def rows_per_cycle(route: Route, chip: Chip) -> float:
    """Rows that one unit takes a cycle."""
    return chip.machine.mxu_rows_per_cycle[_ROWS_TYPES[route.rows]]


def _unit(pushed: str, machine: MachineModel) -> tuple[int, int]:
    """Rows and columns of the weights that a unit holds. Of int4 it takes twice as many rows of half as many columns.

    So listings of libtpu 0.0.42.1 show it: 64 rows of int4 times 512 × 128 weights on v6e, 256 × 64 on v5e.
    """
    return (
        (2 * machine.mxu_rows, machine.mxu_columns // 2)
        if pushed == "int4"
        else (machine.mxu_rows, machine.mxu_columns)
    )


def _depth(block: int, mxu_rows: int) -> int:
    """The largest divisor of a block that a unit loads at once, in whole registers where there is one."""
    return block if block <= mxu_rows else next(each for each in range(mxu_rows, 0, -1) if block % each == 0)


def _weights_depth(spec: QuantizedSpec, chip: Chip) -> int:
    """Whole blocks, as many as fill a unit, or else registers, that divide k."""
    several = (math.lcm(spec.block, rows) for rows in (max(chip.machine.mxu_rows, LANES), LANES))
    return next((rows for rows in several if spec.k % rows == 0), spec.k)
