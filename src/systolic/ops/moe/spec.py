"""A layer of experts, as `plan_moe` and the suite of such layers describe it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from systolic.ops.op import Kept
from systolic.spec import OneDtype, SpecError, dtype_bytes
from systolic.spec.formats import format_bytes
from systolic.spec.matmul import check_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec(OneDtype):
    """`Σ weight · (silu(x @ gate[e]) · (x @ up[e])) @ down[e]` over the `top_k` experts e of each token.

    Attributes:
      m: tokens, of all devices.
      k: features of a token.
      n: features between the two products of an expert.
      experts: of all devices.
      top_k: experts of a token.
      devices: over which experts and tokens are cut.
      dtype_rhs: the dtype of quantized experts, which have scales; None: they are of `dtype`.
      rhs_block: rows of a column of an expert's matrix that share a scale; None: all.
      scale_columns: columns that share scales.
      quantize_lhs: the format to which rows are quantized next to quantized experts; None: they are of `dtype`.

    Raises:
      SpecError: a size below one, more experts of a token than there are, or devices that do not divide experts and
        tokens.
    """

    m: int
    k: int
    n: int
    experts: int
    top_k: int
    dtype: str
    devices: int = 1
    dtype_rhs: str | None = None
    rhs_block: int | None = None
    scale_columns: int = 1
    quantize_lhs: str | None = None

    def __post_init__(self) -> None:
        check_sizes(self, "m", "k", "n", "experts", "top_k", "devices")
        for dtype in filter(None, (self.dtype, self.dtype_rhs)):
            dtype_bytes(dtype)
        if self.top_k > self.experts:
            raise SpecError(f"top_k={self.top_k} of {self.experts} experts; use at most as many as there are")
        if self.quantize_lhs is not None:
            dtype_bytes(self.quantize_lhs)
        check_sizes(self, "scale_columns", *(() if self.rhs_block is None else ("rhs_block",)))
        sizes = math.gcd(self.k, self.n)
        if sizes % (self.rhs_block or 1) or sizes % self.scale_columns:
            raise SpecError(
                f"rhs_block={self.rhs_block} and scale_columns={self.scale_columns} for k={self.k}, n={self.n}; use "
                "divisors of both"
            )
        if self.experts % self.devices or self.m % self.devices:
            raise SpecError(
                f"{self.experts} experts and {self.m} tokens over {self.devices} devices; use a divisor of both"
            )

    @property
    def dtype_multiplied(self) -> str:
        """The format of quantized rows, or the dtype."""
        return self.quantize_lhs or self.dtype

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        """Return `dtype_multiplied`, or the dtype where matrix units do not take that."""
        return self.dtype_multiplied if self.dtype_multiplied in dtypes else self.dtype

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products of experts, on each device."""
        return 3 * 2 * self.m * self.top_k * self.k * self.n // self.devices

    @property
    def scales(self) -> int:
        """The number of scales of all experts."""
        if self.dtype_rhs is None:
            return 0
        blocks = [rows // (self.rhs_block or rows) * columns for rows, columns in self.matrices]
        return self.experts * sum(blocks) // self.scale_columns

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of gate, up and down."""
        return (self.k, self.n), (self.k, self.n), (self.n, self.k)

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of all weights, tokens, logits of the router and results of each device, once."""
        weight_bytes = format_bytes(self.dtype_rhs or self.dtype, 3 * self.experts * self.k * self.n)
        floats = self.m * self.experts + self.scales
        float_bytes = 2 * self.m * self.k * dtype_bytes(self.dtype) + floats * dtype_bytes("float32")
        return (weight_bytes + float_bytes) // self.devices

    @property
    def experts_named(self) -> str:
        """The format of quantized experts, such as "int8" or "float8_e4m3fn, a scale for 128 × 128"."""
        if self.dtype_rhs is None:
            return ""
        rows = f", rows of {self.quantize_lhs}" if self.quantize_lhs else ""
        if self.rhs_block is None and self.scale_columns == 1:
            return self.dtype_rhs + rows
        return f"{self.dtype_rhs}, a scale for {self.rhs_block or 'a column'} × {self.scale_columns}{rows}"


class MoeLayers(Kept):
    """The kind of spec, by its name in files."""

    name = "moe"
    spec_type = MoeSpec

    def words(self, spec: MoeSpec) -> tuple[str, str, str]:
        over = f" over {spec.devices} devices" if spec.devices > 1 else ""
        sizes = f"{spec.m:,} tokens × {spec.k:,}, {spec.top_k} of {spec.experts} experts × {spec.n:,}{over}"
        return sizes, spec.dtype, f"gated, experts of {spec.experts_named}" if spec.dtype_rhs else "gated"
