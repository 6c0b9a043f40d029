"""A product with a quantized right-hand side, a quantized left-hand side, or both."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from systolic.spec.dtypes import EXACT_INT32_PRODUCTS, SpecError, dtype_bytes
from systolic.spec.formats import LARGEST, QuantizationError, format_bytes
from systolic.spec.matmul import check_sizes

_SCALES = ("float32", "bfloat16")
_FLOATS = ("float32", "bfloat16")
_PLAIN = "bfloat16"
# Formats of rows that the kernel takes. Rows in others are cast before it, which is exact.
ROW_FORMATS = ("int8", "int4", "float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int8", "int4")
# Four-bit formats that an eight-bit format holds exactly; see `quantized.route`.
_CODED_AS = {"int4": "float8_e4m3fn", "float4_e2m1fn": "float8_e5m2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSpec:
    """`(activation(lhs[m, k] @ (values[k, n] · scales) + bias) + residual) · out_scale`, a scale for `block` of k.

    Attributes:
      dtype_lhs: bfloat16, or float32, which is multiplied as bfloat16; or one of `ROW_FORMATS`, of values with scales.
      lhs_block: columns of a row of lhs that share a scale, if lhs has scales: k, or `block`.
      quantize_lhs: one of `ROW_FORMATS`, to which the kernel quantizes each row of lhs with its own scale; None: no
        quantization.
      dtype_rhs: of the values; with quantized rows also bfloat16, for a weight that is not quantized: its scales are
        one.
      block: rows of a column of the right-hand side that share a scale, a divisor of k; k: one scale a column.
      dtype_scale: float32 or bfloat16.
      bias, residual: True if these are added.
      activation: the name of a function of the sum and the bias.
      gated: True if there is a second weight like the first, whose product is multiplied by the activation:
        `activation(lhs @ gate) · (lhs @ up)`.
      out_scale: True if the result is multiplied by a number for each column.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, a dtype is unknown, or `gated` comes with another fusion.
      QuantizationError: nothing is quantized to `dtype_rhs`, or the block does not divide k.
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
    lhs_block: int | None = None
    quantize_lhs: str | None = None
    gated: bool = False
    out_scale: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "m", "k", "n", "block")
        if self.dtype_lhs not in (*_FLOATS, *ROW_FORMATS):
            raise SpecError(f"dtype_lhs={self.dtype_lhs!r}; use {', '.join((*_FLOATS, *ROW_FORMATS))}")
        self._check_rows()
        dtype_bytes(self.dtype_out)
        if self.dtype_rhs not in LARGEST and not (self.dtype_rhs == _PLAIN and self.scales_rows):
            alternatives = f", or {_PLAIN} beside quantized rows"
            raise QuantizationError(
                f"dtype_rhs={self.dtype_rhs!r} is not a format; use one of {', '.join(LARGEST)}{alternatives}"
            )
        if self.dtype_scale not in _SCALES:
            raise QuantizationError(f"dtype_scale={self.dtype_scale!r}; use {' or '.join(_SCALES)}")
        if self.k % self.block:
            raise QuantizationError(f"block={self.block} does not divide k={self.k}; use a divisor")
        if self.gated and (self.bias or self.residual or self.out_scale):
            raise SpecError("gated products take neither bias, residual nor out_scale; leave them out")

    def _check_rows(self) -> None:
        in_hbm = self.lhs_block is not None
        if self.dtype_lhs in ROW_FORMATS and not in_hbm:
            raise SpecError(f"dtype_lhs={self.dtype_lhs!r} without scales; pass lhs_block, such as k={self.k}")
        if self.lhs_block not in (None, self.k, self.block):
            raise QuantizationError(f"lhs_block={self.lhs_block}; use k={self.k} or block={self.block}")
        if self.quantize_lhs is not None and (in_hbm or self.quantize_lhs not in ROW_FORMATS):
            raise QuantizationError(
                f"quantize_lhs={self.quantize_lhs!r} of dtype_lhs={self.dtype_lhs!r}; floats are quantized to "
                f"{', '.join(ROW_FORMATS)}"
            )

    @property
    def weights(self) -> int:
        """The number of weights that multiply the rows."""
        return 2 if self.gated else 1

    @property
    def blocks(self) -> int:
        """The number of scales of a column."""
        return self.k // self.block

    @property
    def lhs_blocks(self) -> int:
        """The number of scales of a row that are read from HBM."""
        return 0 if self.lhs_block is None else self.k // self.lhs_block

    @property
    def row_format(self) -> str | None:
        """The format of the rows of lhs, wherever they are quantized; None: they are floats of 16 bits or more."""
        return self.quantize_lhs or (self.dtype_lhs if self.dtype_lhs in ROW_FORMATS else None)

    @property
    def scales_rows(self) -> bool:
        """True if rows of lhs have scales."""
        return self.lhs_block is not None or self.quantize_lhs is not None

    @property
    def sums_integers(self) -> bool:
        """True if values of both sides are integers, so that the sum of their products is one."""
        return self.row_format in _INTEGERS and self.dtype_rhs in _INTEGERS

    @property
    def exact_in_int32(self) -> bool:
        """True if an int32 surely holds the sum of a block, so that the sum is exact."""
        return self.block <= EXACT_INT32_PRODUCTS

    @property
    def dtype_multiplied(self) -> str:
        """The narrowest dtype in which a matrix unit takes both sides unchanged, which decides its rate."""
        if self.sums_integers:
            return "int8"
        alike = {self.dtype_rhs, _CODED_AS.get(self.dtype_rhs, self.dtype_rhs)}
        return self.row_format if self.row_format in alike and self.row_format else "bfloat16"

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        """Return the dtype of the codes, or bfloat16 where the matrix units do not take that."""
        return self.dtype_multiplied if self.dtype_multiplied in dtypes else "bfloat16"

    @property
    def passes(self) -> int:
        """One pass."""
        return 1

    @property
    def flops(self) -> int:
        """Multiplications and additions, without the scaling."""
        return 2 * self.m * self.k * self.n * self.weights

    @property
    def lhs_bytes(self) -> int:
        """Bytes of the rows, and of their scales."""
        return format_bytes(self.dtype_lhs, self.m * self.k) + self.m * self.lhs_blocks * dtype_bytes("float32")

    @property
    def rhs_bytes(self) -> int:
        """Bytes of values and scales, of both weights if there are two."""
        scales = self.blocks * self.n * dtype_bytes(self.dtype_scale)
        return self.weights * (format_bytes(self.dtype_rhs, self.k * self.n) + scales)

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of all operands read once, and the result written once."""
        results = self.m * self.n * dtype_bytes(self.dtype_out) * (2 if self.residual else 1)
        return self.lhs_bytes + self.rhs_bytes + results + 4 * self.n * (self.bias + self.out_scale)
