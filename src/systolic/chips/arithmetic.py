"""Which dtypes a kernel's body computes with, chip by chip: the dot's operands, and what vector units have no
operation for.

Source of the dots: all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions,
compiled in a 128 × 256 × 128 product for every chip with libtpu 0.0.42.1. Source of the vector operations: 40 of them
on fourteen dtypes, compiled likewise. `benchmarks/check_configurations.py` goes on checking both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_WIDE = frozenset({"float32", "bfloat16"})
_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
_ALL_FLOAT8 = _FLOAT8 | {"float8_e4m3b11fnuz"}
_WHOLE = frozenset({"int4", "int8", "int16", "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DotOperands:
    """What a dot takes on one chip.

    Attributes:
      floats: floating-point operands.
      integers: integers that a float may meet: they are converted to it.
      integer_pairs: dtypes of which two alike are multiplied with an int32 sum.
      converts: whether operands are converted before they meet, so that any two are taken, with a sum of either kind.
      exact_partners: what a float32 may meet at `Precision.HIGHEST`.
    """

    floats: frozenset[str]
    integers: frozenset[str]
    integer_pairs: frozenset[str]
    converts: bool
    exact_partners: frozenset[str]

    def refusal(self, lhs: str, rhs: str, total: str, *, exact: bool) -> str | None:
        """Why a dot of `lhs` and `rhs` with sums of `total` is refused; None if it is taken.

        Args:
          lhs: dtype of the left operand.
          rhs: of the right one.
          total: of the result: what `preferred_element_type` says, else what JAX makes of the operands.
          exact: at `Precision.HIGHEST`.
        """
        known = self.floats | self.integers
        strange = [dtype for dtype in dict.fromkeys((lhs, rhs)) if dtype not in known]
        if strange:
            return f"it takes {', '.join(sorted(known))}, not {' or '.join(strange)}"
        if total not in ("float32", "int32"):
            return "its sums are float32 or int32"
        if exact and not ("float32" in (lhs, rhs) and {lhs, rhs} <= self.exact_partners):
            return f"at HIGHEST it takes float32 with {', '.join(sorted(self.exact_partners))}"
        both_whole = lhs in self.integers and rhs in self.integers
        if self.converts:
            return "two int32 are not multiplied" if lhs == rhs == "int32" else None
        if total == "float32":
            return "two integers need an int32 sum" if both_whole else None
        if exact or not (lhs == rhs and lhs in self.integer_pairs):
            pairs = " or ".join(f"{dtype} with {dtype}" for dtype in sorted(self.integer_pairs)) or "no operands here"
            return f"an int32 sum is of {pairs}"
        return None


_V5 = DotOperands(
    floats=_WIDE | _ALL_FLOAT8,
    integers=_WHOLE,
    integer_pairs=frozenset({"int4", "int8"}),
    converts=False,
    exact_partners=_WHOLE | {"float32"},
)

_OPERANDS: Mapping[str, DotOperands] = {
    "v4": DotOperands(
        floats=_WIDE,
        integers=_WHOLE,
        integer_pairs=frozenset(),
        converts=False,
        exact_partners=_WHOLE | {"float32"},
    ),
    "v5e": _V5,
    "v5p": _V5,
    "v6e": _V5,
    "v7x": DotOperands(
        floats=_WIDE | _FLOAT8,
        integers=_WHOLE - {"int16"},
        integer_pairs=frozenset({"int4", "int8"}),
        converts=True,
        exact_partners=frozenset({"float32", "int32"}),
    ),
}


def dot_operands(chip_name: str) -> DotOperands:
    """What a dot in a kernel takes on that chip."""
    return _OPERANDS[chip_name]


EXACT_PASSES = 6  # bfloat16 passes of a float32 dot at HIGHEST: the `vmatmul`s of 256³ on every chip, against default

# Loading, storing and converting these is refused on every chip.
UNLOADABLE = frozenset({"float16"})

_BYTES = frozenset({"int8", "uint8", "int4", "uint4"})
_FLOATS = _ALL_FLOAT8
_SHORTS = frozenset({"int16", "uint16"})
_UNSIGNED = frozenset({"uint8", "uint16", "uint32"})
_ARITHMETIC = _BYTES | _FLOATS

# Vector operations by JAX's name, and the dtypes of operands of which every chip refuses them.
VECTOR_REFUSALS: Mapping[str, frozenset[str]] = {
    "add": _ARITHMETIC,
    "add_any": _ARITHMETIC,
    "sub": _ARITHMETIC,
    "mul": _ARITHMETIC,
    "neg": _ARITHMETIC,
    "abs": _FLOATS | {"int8"},
    "div": _FLOATS,
    "rsqrt": _FLOATS,
    "max": _ARITHMETIC | _SHORTS | _UNSIGNED,
    "min": _ARITHMETIC | _SHORTS | _UNSIGNED,
    "lt": _ARITHMETIC | {"uint16"},
    "le": _ARITHMETIC | {"uint16"},
    "gt": _ARITHMETIC | {"uint16"},
    "ge": _ARITHMETIC | {"uint16"},
    "eq": _FLOATS | {"int4"},
    "ne": _FLOATS | {"int4"},
    "rem": _ARITHMETIC | _SHORTS | {"bfloat16"},
    "sign": frozenset({"int4", "int8"}),
    "integer_pow": _ARITHMETIC,
    "shift_left": _BYTES | _SHORTS,
    "shift_right_arithmetic": _BYTES | _SHORTS,
    "shift_right_logical": _BYTES | _SHORTS,
    "exp": _FLOATS,
    "log": _FLOATS,
    "logistic": _FLOATS,
    "sqrt": _FLOATS,
    "tanh": _FLOATS,
    "reduce_sum": _FLOATS | _UNSIGNED,
    "reduce_max": _ARITHMETIC | _SHORTS | _UNSIGNED | {"bool"},
    "reduce_min": _ARITHMETIC | _SHORTS | _UNSIGNED | {"bool"},
}
