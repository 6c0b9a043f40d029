"""The dtypes of a kernel's body: the dot's operands, which each chip's file names, and operations that the vector
units of all chips lack.

Source of the vector operations: 40 of them on fourteen dtypes, compiled for every chip with libtpu 0.0.42.1.
`benchmarks/check_configurations.py` goes on checking them and the dots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DotOperands:
    """Operands of a dot on one chip."""

    floats: frozenset[str]  # floating-point operands
    integers: frozenset[str]  # integers that a float may meet: they are converted to it
    integer_pairs: frozenset[str]  # dtypes whose pairs are multiplied with an int32 sum
    # Operands are converted first, so that any two are taken, with a sum of either kind.
    converts: bool
    exact_partners: frozenset[str]  # partners of float32 at `Precision.HIGHEST`

    def refusal(self, lhs: str, rhs: str, total: str, *, exact: bool) -> str | None:
        """Return why a dot of `lhs` and `rhs` with sums of `total` is refused; None if it is taken.

        Args:
          lhs: dtype of the left operand.
          rhs: of the right one.
          total: of the result: what `preferred_element_type` says, else what JAX makes of the operands.
          exact: at `Precision.HIGHEST`.
        """
        taken = self.floats | self.integers
        strange = [dtype for dtype in dict.fromkeys((lhs, rhs)) if dtype not in taken]
        if strange:
            return f"it takes {', '.join(sorted(taken))}, not {' or '.join(strange)}"
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


EXACT_PASSES = 6  # bfloat16 passes of a float32 dot at HIGHEST: the `vmatmul`s of 256³ on every chip, against default

# Loading, storing and converting these is refused on every chip.
UNLOADABLE = frozenset({"float16"})

_BYTES = frozenset({"int8", "uint8", "int4", "uint4"})
_SHORTS = frozenset({"int16", "uint16"})
_UNSIGNED = frozenset({"uint8", "uint16", "uint32"})
_ARITHMETIC = _BYTES | _FLOAT8

# Vector operations by JAX's name, and the operand dtypes that every chip refuses.
VECTOR_REFUSALS: Mapping[str, frozenset[str]] = {
    "add": _ARITHMETIC,
    "add_any": _ARITHMETIC,
    "sub": _ARITHMETIC,
    "mul": _ARITHMETIC,
    "neg": _ARITHMETIC,
    "abs": _FLOAT8 | {"int8"},
    "div": _FLOAT8,
    "rsqrt": _FLOAT8,
    "max": _ARITHMETIC | _SHORTS | _UNSIGNED,
    "min": _ARITHMETIC | _SHORTS | _UNSIGNED,
    "lt": _ARITHMETIC | {"uint16"},
    "le": _ARITHMETIC | {"uint16"},
    "gt": _ARITHMETIC | {"uint16"},
    "ge": _ARITHMETIC | {"uint16"},
    "eq": _FLOAT8 | {"int4"},
    "ne": _FLOAT8 | {"int4"},
    "rem": _ARITHMETIC | _SHORTS | {"bfloat16"},
    "sign": frozenset({"int4", "int8"}),
    "integer_pow": _ARITHMETIC,
    "shift_left": _BYTES | _SHORTS,
    "shift_right_arithmetic": _BYTES | _SHORTS,
    "shift_right_logical": _BYTES | _SHORTS,
    "exp": _FLOAT8,
    "log": _FLOAT8,
    "logistic": _FLOAT8,
    "sqrt": _FLOAT8,
    "tanh": _FLOAT8,
    "reduce_sum": _FLOAT8 | _UNSIGNED,
    "reduce_max": _ARITHMETIC | _SHORTS | _UNSIGNED | {"bool"},
    "reduce_min": _ARITHMETIC | _SHORTS | _UNSIGNED | {"bool"},
}
