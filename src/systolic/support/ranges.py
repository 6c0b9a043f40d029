"""Ranges of the numbers in records. `untrusted.structured` refuses a value outside its field's range.

A range is part of the field's type, so that a record declares it once:

    cycles: Count
    time_us: Time | None

The limits are far outside of anything that is simulated, and keep sums, products and ratios of values finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values that a number may have."""

    least: float  # the smallest value
    most: float | None = None  # the largest value; None: the type's
    zero: bool = False  # 0 is allowed too

    def holds(self, value: float) -> bool:
        """True if the value is in the range. NaN is in none."""
        return (self.zero and value == 0) or (self.least <= value and (self.most is None or value <= self.most))

    def __str__(self) -> str:
        upper = "or more" if self.most is None else f"to {self.most:g}"
        return f"{'0, or ' if self.zero else ''}{self.least:g} {upper}"


Count = Annotated[int, Range(least=0)]
PositiveCount = Annotated[int, Range(least=1)]
Magnitude = Annotated[float, Range(least=0)]  # as small or as large as its dtype has it
Amount = Annotated[float, Range(least=1e-30, most=1e30, zero=True)]
Change = Annotated[float, Range(least=-1e30, most=1e30)]
Time = Annotated[float, Range(least=1e-9, most=1e15)]  # in µs or s, of something that ran
Hertz = Annotated[float, Range(least=1e3, most=1e15)]
Rate = Annotated[float, Range(least=1e-15, most=1e30)]  # a second, or a cycle
