"""`systolic.gated_matmul`: its call, its derivatives, and what the planner knows of it. Its kernels are the matmul's."""

from systolic.ops.gated.api import gated_matmul
from systolic.ops.gated.plan import GatedOp

__all__ = ["GatedOp", "gated_matmul"]
