"""A product with a quantised right-hand side."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.spec.dtypes import SpecError, dtype_bytes
from systolic.spec.formats import LARGEST, QuantizationError, format_bytes
from systolic.spec.matmul import LARGEST_SIZE

_SCALES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSpec:
    """`activation(lhs[m, k] @ (values[k, n] · scales) + bias) + residual`, with a scale for `block` rows of a column.

    Attributes:
      dtype_lhs: bfloat16, or float32, which is multiplied as bfloat16.
      dtype_rhs: of the values.
      block: rows of a column of the right-hand side that share a scale, a divisor of k; k: one scale a column.
      dtype_scale: float32 or bfloat16.
      bias, residual: whether these are added.
      activation: the name of a function of the sum and the bias.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, or a dtype is unknown.
      QuantizationError: nothing is quantised to `dtype_rhs`, or the block does not divide k.
    """

    m: int
    k: int
    n: int
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str
    block: int
    dtype_scale: str = "float32"
    bias: bool = False
    activation: str = ""
    residual: bool = False

    def __post_init__(self) -> None:
        for name in ("m", "k", "n", "block"):
            size = getattr(self, name)
            if not 1 <= size <= LARGEST_SIZE:
                raise SpecError(f"{name}={size}: it has to be a number from 1 to {LARGEST_SIZE}")
        if self.dtype_lhs not in ("float32", "bfloat16"):
            raise SpecError(f"dtype_lhs={self.dtype_lhs!r}; use float32 or bfloat16")
        dtype_bytes(self.dtype_out)
        if self.dtype_rhs not in LARGEST:
            raise QuantizationError(f"dtype_rhs={self.dtype_rhs!r} is no format; use one of {', '.join(LARGEST)}")
        if self.dtype_scale not in _SCALES:
            raise QuantizationError(f"dtype_scale={self.dtype_scale!r}; use {' or '.join(_SCALES)}")
        if self.k % self.block:
            raise QuantizationError(f"block={self.block} does not divide k={self.k}; use a divisor")

    @property
    def blocks(self) -> int:
        """Scales of a column."""
        return self.k // self.block

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes the rows of lhs, and at whose rate."""
        return "bfloat16"

    @property
    def passes(self) -> int:
        """One."""
        return 1

    @property
    def flops(self) -> int:
        """Multiplications and additions, without those of the scales."""
        return 2 * self.m * self.k * self.n

    @property
    def rhs_bytes(self) -> int:
        """Bytes of values and scales."""
        return format_bytes(self.dtype_rhs, self.k * self.n) + self.blocks * self.n * dtype_bytes(self.dtype_scale)

    @property
    def least_hbm_bytes(self) -> int:
        """Everything read once, the result written once."""
        beside = self.m * self.n * dtype_bytes(self.dtype_out) * (2 if self.residual else 1) + 4 * self.n * self.bias
        return self.m * self.k * dtype_bytes(self.dtype_lhs) + self.rhs_bytes + beside
