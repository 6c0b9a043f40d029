"""Values of the scalar side: 32-bit words, floats in them, and values that are not known.

A word that the vector side computed, or that belongs to an argument given only as a shape, is an `Unknown`.
Arithmetic passes it on; to branch on it, or to wait for that many granules, is an error that names its origin.
"""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from systolic.simulator.errors import UnknownValueError

MASK = 0xFFFFFFFF
_SIGN = 0x80000000


class Unknown:
    """An unknown value and its origin.

    Args:
      why: its origin.
      computed: the program computes it; else it belongs to an argument, and could have been given.
      argument: the number of that argument, if it is known.
    """

    __slots__ = ("argument", "computed", "why")

    def __init__(self, why: str, *, computed: bool = True, argument: int | None = None) -> None:
        self.why = why
        self.computed = computed
        self.argument = argument

    def __repr__(self) -> str:
        return f"Unknown({self.why!r})"

    def _same(self, *_: object) -> Unknown:
        return self

    def _decides(self, *_: object) -> NoReturn:
        error = UnknownValueError(f"control flow depends on {self.why}")
        error.why, error.computed, error.argument = self.why, self.computed, self.argument
        raise error

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same

    # With zero, or with all bits, the result does not depend on the value. Predicates are combined in this way too.
    def __and__(self, other: object) -> Any:
        return other if other is False or (other.__class__ is int and other == 0) else self

    def __or__(self, other: object) -> Any:
        return other if other is True or (other.__class__ is int and other == MASK) else self

    __rand__, __ror__ = __and__, __or__
    __xor__ = __rxor__ = _same
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __neg__ = __invert__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _same
    __lt__ = __le__ = __gt__ = __ge__ = _same
    __eq__ = __ne__ = _same  # type: ignore[assignment]
    __bool__ = __index__ = __int__ = __float__ = _decides
    __hash__ = _decides


COMPUTED = Unknown("what the vector unit computed")
LANE_NUMBERS = Unknown("the numbers of a vector's lanes")
NEVER_WRITTEN = Unknown("a register or a word of scalar memory that nothing has written")


def smaller(a: int | Unknown, b: int | Unknown) -> int | Unknown:
    """Return the smaller word, or the unknown one."""
    return a if isinstance(a, Unknown) else b if isinstance(b, Unknown) else min(a, b)


def larger(a: int | Unknown, b: int | Unknown) -> int | Unknown:
    """Return the larger word, or the unknown one."""
    return a if isinstance(a, Unknown) else b if isinstance(b, Unknown) else max(a, b)


def _of_known(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of words return the first unknown one."""

    @functools.wraps(function)
    def of_words(*operands: Any) -> Any:
        unknown = next((operand for operand in operands if isinstance(operand, Unknown)), None)
        return function(*operands) if unknown is None else unknown

    return of_words


def as_float(word: int) -> float:
    """Read the IEEE single in a word."""
    return struct.unpack("<f", struct.pack("<I", word))[0]


def as_word(value: float) -> int:
    """Round a float to single precision and return it as a word."""
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def _quotient(x: float, y: float) -> float:
    if y == 0:
        return math.nan if x == 0 else math.copysign(math.inf, x)
    return x / y


_FLOAT_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "min": min,
    "max": max,
}


@_of_known
def float_result(operation: str, a: int, b: int) -> int:
    """Compute `a` and `b` as floats under one of add, sub, mul, div, min, max."""
    return as_word(_FLOAT_OPERATIONS[operation](as_float(a), as_float(b)))


@_of_known
def float_compare(relation: str, a: int, b: int) -> bool:
    """Compare `a` and `b` as floats; `relation` is one of Python's operators."""
    x, y = as_float(a), as_float(b)
    return {"==": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[relation]


@_of_known
def float_from_signed(word: int) -> int:
    """Convert a signed integer to a float."""
    return as_word(float((word ^ _SIGN) - _SIGN))


@_of_known
def signed_from_float(word: int) -> int:
    """Truncate a float towards zero, held to the range of 32 bits."""
    value = as_float(word)
    if math.isnan(value):
        return 0
    return math.trunc(max(-float(_SIGN), min(float(_SIGN - 1), value))) & MASK


@_of_known
def signed_from_whole_float(word: int) -> int | Unknown:
    """Convert a float that is a whole number to a signed integer; the result for other floats is not known."""
    value = as_float(word)
    return signed_from_float(word) if value == math.floor(value) else Unknown("a conversion that rounds")


@_of_known
def rounded_float(direction: str, word: int) -> int:
    value = as_float(word)
    return as_word(float(getattr(math, direction)(value))) if math.isfinite(value) else word


@_of_known
def leading_zeros(word: int) -> int:
    """Count the zero bits above the highest one."""
    return 32 - word.bit_length()


def signed_division(a: int, b: int) -> tuple[int, int]:
    """Divide signed words: the quotient, towards zero, and the remainder."""
    for word in (a, b):
        if isinstance(word, Unknown):
            return word, word
    x, y = (a ^ _SIGN) - _SIGN, (b ^ _SIGN) - _SIGN
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return quotient & MASK, (x - quotient * y) & MASK


# Functions in the Python expressions of scalar instructions, each of words.
SCALAR_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(float_compare, float_from_signed, float_result, larger, leading_zeros, rounded_float, signed_division),
    *(signed_from_float, signed_from_whole_float, smaller),
)
