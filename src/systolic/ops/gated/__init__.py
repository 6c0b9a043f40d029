"""`systolic.gated_matmul`: its call, its derivatives and its plan. It shares the kernels of `systolic.matmul`."""

from systolic.ops.gated.api import gated_matmul
from systolic.ops.gated.op import GatedOp

__all__ = ["GatedOp", "gated_matmul"]
