"""`systolic.grouped_matmul`: rows in groups, each multiplied by its own matrix, as in a mixture of experts."""

from systolic.ops.grouped.api import grouped_matmul
from systolic.ops.grouped.op import GroupedGradientOp, GroupedOp

__all__ = ["GroupedGradientOp", "GroupedOp", "grouped_matmul"]
