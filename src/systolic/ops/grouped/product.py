"""The static parameters of a grouped product, and its specs for some operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from systolic.ops.engine.backend import ActivatedProduct
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.spec import PrecisionName


class Grouping(NamedTuple):
    sizes: Any  # int32 [all groups]
    offset: Any = None  # int32 [1], the number of the first group whose matrix is given; None: all are


class Fused(NamedTuple):
    bias: Any = None  # [groups, n]
    row_scale: Any = None  # [m]
    up: Any = None  # the second right-hand side, as the first
    residual: Any = None  # [m, n], added to the rows of groups
    existing_out: Any = None  # [m, n]: rows of the result that no group has
    rhs_scale: Any = None  # float32 [groups, products · blocks of k, n, or n / 128], of quantized right-hand sides
    lhs_scale: Any = None  # float32 [m], of quantized rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedProduct(ActivatedProduct):
    """All static parameters of a product except its operands' shapes; hashable."""

    precision: PrecisionName
    rows_per_group: int
    transpose_rhs: bool = False
    side_by_side: bool = False  # rhs has the columns of a second right-hand side after its own
    quantize_lhs: str | None = None  # the format to which rows of floats are quantized next to codes
    group_axes: tuple[str, ...] = ()  # of a mesh, over which a gradient's groups are to be cut

    @property
    def plain(self) -> GroupedProduct:
        return replace(self, activation="", function=None, side_by_side=False)

    def is_linear(self, fused: Fused) -> bool:
        """True if the result is linear in the sum, so that no derivative needs the sum."""
        return not self.activation and not self.side_by_side and fused.up is None and fused.row_scale is None

    def spec(self, lhs: Any, rhs: Any, fused: Fused) -> GroupedSpec:
        groups, k, n = rhs.shape
        k, n = (n, k) if self.transpose_rhs else (k, n)
        n = n // 2 if self.side_by_side else n
        gated, scale = self.side_by_side or fused.up is not None, fused.rhs_scale
        blocks = 1 if scale is None else scale.shape[1] // (2 if gated else 1)
        return GroupedSpec(
            m=lhs.shape[0],
            k=k,
            n=n,
            groups=groups,
            rows_per_group=self.rows_per_group,
            dtype=lhs.dtype.name,
            dtype_out=self.dtype_out,
            transpose_rhs=self.transpose_rhs,
            precision=self.precision,
            bias=fused.bias is not None,
            activation=self.activation,
            row_scale=fused.row_scale is not None,
            gated=gated,
            side_by_side=self.side_by_side,
            residual="" if fused.residual is None else fused.residual.dtype.name,
            existing_out=fused.existing_out is not None,
            dtype_rhs=None if scale is None else rhs.dtype.name,
            rhs_block=None if blocks == 1 else k // blocks,
            lhs_scale=fused.lhs_scale is not None,
            scale_columns=1 if scale is None else n // scale.shape[2],
        )

    def gradient_spec(self, lhs: Any, cotangent: Any, groups: int) -> GroupedGradientSpec:
        return GroupedGradientSpec(
            m=lhs.shape[0],
            k=lhs.shape[1],
            n=cotangent.shape[1],
            groups=groups,
            rows_per_group=self.rows_per_group,
            dtype=lhs.dtype.name,
            dtype_out=self.dtype_out,
            precision=self.precision,
        )
