"""Is it right, and how fast is it beside XLA."""

from systolic.bench.accuracy import Accuracy, ResultError, check, operands, reference, tolerance
from systolic.bench.comparison import Speed, abstract_operands, speed, xla_matmul

__all__ = [
    "Accuracy",
    "ResultError",
    "Speed",
    "abstract_operands",
    "check",
    "operands",
    "reference",
    "speed",
    "tolerance",
    "xla_matmul",
]
