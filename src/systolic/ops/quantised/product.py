"""What is static about a product with a quantised weight, and its spec for some operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from systolic.ops.matmul.product import Backend
from systolic.spec import QuantizedSpec


class Operands(NamedTuple):
    """Arrays of a product."""

    lhs: Any  # [m, k], floats or values
    values: Any  # [k, n]
    scales: Any  # [blocks, n]
    bias: Any = None  # [n]
    residual: Any = None  # [m, n]
    lhs_scales: Any = None  # [m, 1 or blocks] float32, of values


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedProduct:
    """All that is static about a product but the shapes of its operands; it can be hashed."""

    backend: Backend
    dtype_out: str
    activation: str = ""  # its name
    function: Callable[..., Any] | None = None  # and what it stands for
    quantize_lhs: str | None = None  # the format to which the kernel quantises rows of floats

    @property
    def plain(self) -> QuantizedProduct:
        """The product without what is done to the sum, which is kept in float32."""
        return replace(self, activation="", function=None, dtype_out="float32")

    def spec(self, operands: Operands) -> QuantizedSpec:
        """Sizes and dtypes, as the planner takes them."""
        (m, k), n = operands.lhs.shape, operands.values.shape[1]
        lhs_scales = operands.lhs_scales
        return QuantizedSpec(
            m=m,
            k=k,
            n=n,
            dtype_lhs=operands.lhs.dtype.name,
            dtype_rhs=operands.values.dtype.name,
            dtype_out=self.dtype_out,
            block=k // operands.scales.shape[0],
            dtype_scale=operands.scales.dtype.name,
            bias=operands.bias is not None,
            activation=self.activation,
            residual=operands.residual is not None,
            lhs_block=None if lhs_scales is None else k // lhs_scales.shape[1],
            quantize_lhs=self.quantize_lhs,
        )
