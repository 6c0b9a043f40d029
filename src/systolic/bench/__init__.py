"""Check results against an exact reference, and race kernels against XLA."""

from systolic.bench.accuracy import Accuracy, ResultError, check, operands, reference, tolerance
from systolic.bench.comparison import abstract_operands, xla_matmul

__all__ = [
    "Accuracy",
    "ResultError",
    "abstract_operands",
    "check",
    "operands",
    "reference",
    "tolerance",
    "xla_matmul",
]
