"""`systolic.matmul`: its call, its derivatives, the plan of its kernel, and XLA's product in its place."""

from systolic.ops.matmul.api import matmul
from systolic.ops.matmul.dot_general import dot_general, einsum
from systolic.ops.matmul.op import MatmulOp

__all__ = ["MatmulOp", "dot_general", "einsum", "matmul"]
