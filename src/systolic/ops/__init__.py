"""The public functions: what is multiplied, by which kernel with which tiles, and its gradient."""

from systolic.ops.matmul.plan import Plan, plan

__all__ = ["Plan", "plan"]
