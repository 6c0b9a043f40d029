"""What is multiplied: shapes, dtypes and the arithmetic that follows from them. Pure data; says nothing about how."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes  # noqa: F401  registers bfloat16 and the float8 types with NumPy
import numpy as np


class ProblemError(ValueError):
    """A product that cannot be: a size below one, an unknown dtype."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`, a NumPy or ml_dtypes name such as `"bfloat16"`.

    Raises:
      ProblemError: no dtype of that name.
    """
    try:
        return np.dtype(dtype).itemsize
    except TypeError as error:
        raise ProblemError(f"dtype {dtype!r} is not known; use a name such as float32, bfloat16 or int8") from error


def accumulator_dtype(dtype: str) -> str:
    """The dtype in which the matrix unit sums products of `dtype`: int32 for integers, else float32."""
    return "int32" if dtype.startswith(("int", "uint")) else "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulProblem:
    """The product `lhs[m, k] @ rhs[k, n] -> out[m, n]`.

    Raises:
      ProblemError: a size is below one or a dtype is unknown.
    """

    m: int
    k: int
    n: int
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            size = getattr(self, name)
            if size < 1:
                raise ProblemError(f"{name}={size}: a matrix needs at least one row and one column")
        for dtype in (self.dtype_lhs, self.dtype_rhs, self.dtype_out):
            dtype_bytes(dtype)

    @classmethod
    def of(cls, m: int, k: int, n: int, dtype: str, dtype_out: str | None = None) -> MatmulProblem:
        """Both operands of `dtype`; the output likewise, but int32 for integers, unless `dtype_out` says otherwise."""
        if dtype_out is None:
            dtype_out = "int32" if accumulator_dtype(dtype) == "int32" else dtype
        return cls(m=m, k=k, n=n, dtype_lhs=dtype, dtype_rhs=dtype, dtype_out=dtype_out)

    @property
    def dtype_accumulator(self) -> str:
        """The dtype of the running sum: int32 where both operands are integers."""
        kinds = {accumulator_dtype(self.dtype_lhs), accumulator_dtype(self.dtype_rhs)}
        return "int32" if kinds == {"int32"} else "float32"

    @property
    def flops(self) -> int:
        """Multiplications and additions, 2·m·k·n (exactly m·n·(2k − 1), which nobody counts)."""
        return 2 * self.m * self.k * self.n

    @property
    def lhs_bytes(self) -> int:
        """Bytes of the left operand."""
        return self.m * self.k * dtype_bytes(self.dtype_lhs)

    @property
    def rhs_bytes(self) -> int:
        """Bytes of the right operand."""
        return self.k * self.n * dtype_bytes(self.dtype_rhs)

    @property
    def out_bytes(self) -> int:
        """Bytes of the result."""
        return self.m * self.n * dtype_bytes(self.dtype_out)

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes that have to cross HBM at the least: each operand read once, the result written once."""
        return self.lhs_bytes + self.rhs_bytes + self.out_bytes

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic intensity over the least traffic."""
        return self.flops / self.least_hbm_bytes
