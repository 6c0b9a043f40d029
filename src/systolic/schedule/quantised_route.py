"""How a quantised weight gets into the matrix units: the cheapest way that is exact, of those that a chip has.

Rows of lhs are bfloat16. Beside them the units of most chips take weights in eight bits, which are loaded in half the
time. What is stored in four bits becomes such weights by a few operations on bits, eight bits a weight:

- int4: the sixteen smallest numbers of e4m3, codes 0 to 15, are equally far apart, also where they are subnormal. So
  the code w + 8 stands for (w + 8) · unit, and what the 8 adds is the sum of a row of lhs times a constant, which the
  kernel takes off. Both are exact; the sum in float32 is of numbers up to twice as large.
- fp4: sign, exponent and mantissa of e2m1 lie in those of e5m2 as they are, and subnormals are subnormal: e5m2 times
  2^14 is the number.

A scale belongs to a block of k. Either the sums of each block are multiplied by it: that rounds least, but a unit loads
no more than a block at a time. Or the weights are, in bfloat16, which rounds each of them once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from systolic.chips import Chip, UnsupportedDtypeError
from systolic.spec import QuantizedSpec, dtype_bytes

Made = Literal["stored", "cast", "codes", "cast codes"]
Scaled = Literal["sums", "weights"]

# Names of operand types in the listings of the compiler, whose rates the machine models know.
_ROWS_TYPE = "bf16"
_REGISTER_BYTES = 4096
_LEAST_ROWS = 16  # of bfloat16, that go through a unit at once
_LANES = 128
# Seen in listings of libtpu 0.0.42.1 for products of 16 rows: bundles between two registers of weights that go into the
# same unit; those that a register of sums takes to be scaled and added; those that one of weights takes to be made and
# scaled, two operations for four slots, or twelve by way of float32. The first two were 3.0 and 1.5 as counted, and are
# lower so that the planner's times come nearer to simulated ones of 16·4096·14336; simulated times rest on neither.
_PUSH_BUNDLES = 2.5
_SCALED_SUM_CYCLES = 1.2
_MADE_CYCLES = 0.5
_MADE_IN_FLOAT32_CYCLES = 3.0
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
      made: as they are stored, by a cast, as codes of four bits, or by a cast of such codes.
      codes: of four bits; None where there are none.
      depth: rows of the weight that one dot sums over: of one block where sums are scaled.
    """

    pushed: str
    made: Made
    codes: Codes | None
    scaled: Scaled
    depth: int

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
        }
        return f"weights are {how[self.made]}, scales multiply {self.scaled}"


def route_of(spec: QuantizedSpec, rows: int, chip: Chip) -> Route:
    """The route that keeps a core busy for the shortest time, of equal ones that which rounds least.

    Args:
      rows: of lhs that meet a weight in VMEM.

    Raises:
      UnsupportedDtypeError: the chip has no way to multiply such weights.
    """
    found = routes(spec, chip)
    if not found:
        raise UnsupportedDtypeError(
            f"{chip.name} neither multiplies {spec.dtype_rhs} nor converts it; use int8, or dequantize the weight"
        )
    return min(found, key=lambda route: route_cycles(route, spec, rows, spec.k, spec.n, chip))


def routes(spec: QuantizedSpec, chip: Chip) -> list[Route]:
    """Every route that the chip has, those that round least first."""
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
    sums = [
        Route(pushed=pushed, made=made, codes=its, scaled="sums", depth=_depth(spec.block, chip.machine.mxu_rows))
        for made, pushed, its in ways
    ]
    # bfloat16 is what the vector units multiply; scales of whole columns cost nothing behind the sum.
    weights = [
        Route(pushed=pushed, made=made, codes=its, scaled="weights", depth=_weights_depth(spec, chip))
        for made, pushed, its in ways
        if pushed == "bfloat16" and spec.blocks > 1
    ]
    return sums + weights


def route_cycles(route: Route, spec: QuantizedSpec, rows: int, k: int, n: int, chip: Chip) -> float:
    """Cycles of a core for this many rows, k and n of a product, where neither copies nor code around them matter."""
    machine = chip.machine
    deep = min(route.depth, machine.mxu_rows)
    tiles = k / deep * -(-n // machine.mxu_columns) / machine.mxu_count
    registers = deep * machine.mxu_columns * dtype_bytes(route.pushed) / _REGISTER_BYTES
    taken = max(rows, _LEAST_ROWS) / machine.mxu_rows_per_cycle[_ROWS_TYPE]
    units = tiles * max(taken + registers * machine.weight_push_cycles, registers * _PUSH_BUNDLES)
    if route.scaled == "weights":
        each = _MADE_CYCLES if chip.vector_bfloat16 else _MADE_IN_FLOAT32_CYCLES
        vector = k * n * dtype_bytes(route.pushed) / _REGISTER_BYTES * each
    elif spec.blocks > 1:
        vector = k / spec.block * max(rows, 8) * n / 1024 * _SCALED_SUM_CYCLES
    else:
        vector = 0.0
    return max(units, vector) + _NOT_BESIDE * min(units, vector)


def _depth(block: int, mxu_rows: int) -> int:
    """The largest divisor of a block that a unit loads at once, in whole registers where there is one."""
    return block if block <= mxu_rows else next(each for each in range(mxu_rows, 0, -1) if block % each == 0)


def _weights_depth(spec: QuantizedSpec, chip: Chip) -> int:
    """Whole blocks, as many as fill a unit, that divide k."""
    several = math.lcm(spec.block, max(chip.machine.mxu_rows, _LANES))
    return several if spec.k % several == 0 else spec.k
