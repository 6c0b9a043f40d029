"""The seeds' own programme, each lesson a short file that runs by itself and computes the facts it shows."""

from systolic.lessons.lesson import Lesson, Part, Results, Shown

# Name → module with a `lesson(chips)` function. Paths, not modules: listing the lessons imports none of them, and the
# roofline needs no JAX.
LESSONS: dict[str, str] = {
    "block_matmul": "systolic.lessons.block_matmul",
    "first_matmul": "systolic.lessons.first_matmul",
    "roofline": "systolic.lessons.roofline",
    "pipelining": "systolic.lessons.pipelining",
    "reductions": "systolic.lessons.reductions",
    "scalar_prefetch": "systolic.lessons.scalar_prefetch",
    "numbers_on_chip": "systolic.lessons.numbers_on_chip",
    "operation_costs": "systolic.lessons.operation_costs",
    "cores": "systolic.lessons.cores",
    "refs": "systolic.lessons.refs",
    "pl_kernel": "systolic.lessons.pl_kernel",
    "between_chips": "systolic.lessons.between_chips",
    "sparse_core": "systolic.lessons.sparse_core",
}

__all__ = ["LESSONS", "Lesson", "Part", "Results", "Shown"]
