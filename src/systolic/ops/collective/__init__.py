"""Products across the chips of a slice: all-gather × matmul, and matmul × reduce-scatter."""

from systolic.ops.collective.api import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
    plan_across_chips,
)

__all__ = ["all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter", "plan_across_chips"]
