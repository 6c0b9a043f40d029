"""The static parameters of a product with a quantized weight, and its spec for some operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from systolic.ops.engine.backend import ActivatedProduct
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.spec import LARGEST


class Operands(NamedTuple):
    lhs: Any  # [m, k], floats or values
    values: Any  # [k, n]; of a weight that is not quantized float32 or bfloat16, multiplied as bfloat16
    scales: Any  # [blocks, n]
    bias: Any = None  # [n]
    residual: Any = None  # [m, n]
    lhs_scales: Any = None  # [m, 1 or blocks] float32, of values
    out_scale: Any = None  # [n]
    up_values: Any = None  # [k, n] of a gated product; None: the columns of `values` and `scales` after n
    up_scales: Any = None  # [blocks, n]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedProduct(ActivatedProduct):
    """All static parameters of a product except its operands' shapes; hashable."""

    quantize_lhs: str | None = None  # the format to which the kernel quantizes rows of floats
    gated: bool = False

    @property
    def plain(self) -> QuantizedProduct:
        """The product with one weight and without operations on the sum, which is kept in float32."""
        return replace(self, activation="", function=None, dtype_out="float32", gated=False)

    def is_plain(self, operands: Operands) -> bool:
        """True if there is one weight, and the sum is only cast."""
        fused = (operands.bias, operands.residual, operands.out_scale, self.function)
        return not self.gated and all(array is None for array in fused)

    def columns(self, operands: Operands) -> int:
        return operands.values.shape[1] // (2 if self.gated and operands.up_values is None else 1)

    def apart(self, operands: Operands) -> Operands:
        """Return the operands with both weights of a gated product as separate arrays."""
        n, arrays = self.columns(operands), operands
        if arrays.values.shape[1] == n:
            return arrays
        return arrays._replace(
            values=arrays.values[:, :n],
            scales=arrays.scales[:, :n],
            up_values=arrays.values[:, n:],
            up_scales=arrays.scales[:, n:],
        )

    def spec(self, operands: Operands) -> QuantizedSpec:
        (m, k), n = operands.lhs.shape, self.columns(operands)
        lhs_scales = operands.lhs_scales
        return QuantizedSpec(
            m=m,
            k=k,
            n=n,
            dtype_lhs=operands.lhs.dtype.name,
            dtype_rhs=operands.values.dtype.name if operands.values.dtype.name in LARGEST else "bfloat16",
            dtype_out=self.dtype_out,
            block=k // operands.scales.shape[0],
            dtype_scale=operands.scales.dtype.name,
            bias=operands.bias is not None,
            activation=self.activation,
            residual=operands.residual is not None,
            lhs_block=None if lhs_scales is None else k // lhs_scales.shape[1],
            quantize_lhs=self.quantize_lhs,
            gated=self.gated,
            out_scale=operands.out_scale is not None,
        )


# Fields that all rows share, and a batch of rows with one weight.
OF_COLUMNS = ("values", "scales", "bias", "out_scale", "up_values", "up_scales")


def differentiated(operands: Operands) -> Operands:
    """Return the operands that have derivatives; None in place of values, which have none."""
    quantized = ("lhs",) if operands.lhs_scales is not None else ()
    for name in ("values", "up_values"):
        if getattr(operands, name) is not None and getattr(operands, name).dtype.name in LARGEST:
            quantized += (name,)
    return operands._replace(**dict.fromkeys(quantized))


def each_weight(operands: Operands) -> list[Operands]:
    """Return the operands of the plain product with each weight, without the fused operands."""
    alone = operands._replace(bias=None, residual=None, out_scale=None, up_values=None, up_scales=None)
    if operands.up_values is None:
        return [alone]
    return [alone, alone._replace(values=operands.up_values, scales=operands.up_scales)]
