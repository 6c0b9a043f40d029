"""Is it right, and how fast is it beside XLA."""

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
