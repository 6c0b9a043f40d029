"""The public functions: what is multiplied, by which kernel with which tiles, and its gradient."""

from systolic.op import register
from systolic.ops.matmul.plan import MatmulOp
from systolic.ops.planner import Plan, Planner, plan, planner_in_use, use

OPS = (MatmulOp(),)  # a line for each op

for each in OPS:
    register(each)

__all__ = ["OPS", "Plan", "Planner", "plan", "planner_in_use", "use"]
