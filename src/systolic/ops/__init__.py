"""The public functions: what is multiplied, by which kernel with which tiles, and its gradient."""

from systolic.op import register
from systolic.ops.gated import GatedOp
from systolic.ops.grouped import GroupedGradientOp, GroupedOp
from systolic.ops.matmul import MatmulOp
from systolic.ops.planner import Plan, Planner, plan, planner_in_use, use
from systolic.ops.quantised.plan import QuantizedOp
from systolic.ops.sparse.plan import SparseOp

# A line for each op.
register(MatmulOp())
register(GatedOp())
register(GroupedOp())
register(GroupedGradientOp())
register(QuantizedOp())
register(SparseOp())

__all__ = ["Plan", "Planner", "plan", "planner_in_use", "use"]
