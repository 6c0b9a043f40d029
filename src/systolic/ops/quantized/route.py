"""The route of a quantized weight into the matrix units: the cheapest exact one that a chip has.

Rows of lhs are bfloat16, which holds every number of every format, or in a narrower dtype if rows are quantized and the
units take it at a higher rate: int8, int4, or a float8 with weights of the same kind.

With bfloat16 rows the units of most chips take weights in eight bits, which are loaded in half the time. Values stored
in four bits become such weights by a few operations on bits:

- int4: the sixteen smallest numbers of e4m3, codes 0 to 15, are equally far apart, also where they are subnormal. So
  the code w + 8 represents (w + 8) · unit. The 8 adds the sum of a row of lhs times a constant, which the kernel
  subtracts. Both are exact; the sum in float32 is of numbers up to twice as large.
- fp4: sign, exponent and mantissa of e2m1 are copied unchanged into the fields of e5m2, and subnormals stay subnormal:
  e5m2 times 2^14 is the number.

Numbers of a float format that a chip does not take at all are built from their bits as float32, and pushed as bfloat16.

A scale belongs to a block of k. Either it multiplies the sums of each block: that rounds least, but a unit loads at
most a block at a time. Or it multiplies the weights, in bfloat16, which rounds each of them once more: not if rows are
quantized, because their products are to be exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Made = Literal["stored", "cast", "codes", "cast codes", "bits"]
Scaled = Literal["sums", "weights"]

EVEN_FIRST_ROWS = 64  # of int4 in a register, in two of eight bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """Numbers of four bits as codes of a format of eight: `value = code / unit - offset`, as numbers of that format."""

    dtype: str
    unit: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The weights loaded into the matrix units, the way to make them, and the target of the scales."""

    pushed: str  # dtype of the weights in the units
    # As stored, by a cast, as codes of four bits, by a cast of such codes, or from their bits.
    made: Made
    codes: Codes | None  # codes of four bits; None if there are none
    scaled: Scaled
    depth: int  # rows of the weight that one dot sums over: a block's rows if sums are scaled
    rows: str = "bfloat16"  # dtype in which rows of lhs go through the units
    # True if rows are of a float format that the chip does not take, so that they are made from their bits.
    rows_of_bits: bool = False
    # True if the even ones of every 64 rows of the weight come before the odd ones, and columns of lhs too: so each
    # half of a byte becomes a code without being unpacked.
    even_first: bool = False
    # Int32 if products are summed as integers, by the units or, for exact parts, after them; else float32.
    sums: Literal["float32", "int32"] = "float32"

    @property
    def unit(self) -> float:
        """The number that represents 1 among the pushed weights."""
        return self.codes.unit if self.codes else 1.0

    @property
    def offset(self) -> float:
        """The number that is added to every weight, and subtracted from the sums."""
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
