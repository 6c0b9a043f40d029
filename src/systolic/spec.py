"""What is multiplied: shapes, dtypes and the arithmetic that follows from them. Pure data; says nothing about how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes  # noqa: F401  registers bfloat16 and the float8 types with NumPy
import numpy as np

LARGEST_SIZE = 2**31 - 1


class SpecError(ValueError):
    """A product that cannot be: a size below one or past what a TPU counts, an unknown dtype."""


class NoKernelWarning(UserWarning):
    """A program for a TPU holds XLA's product in place of systolic's kernel; the message says why, and what helps."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`, a NumPy or ml_dtypes name such as `"bfloat16"`.

    Raises:
      SpecError: no dtype of that name.
    """
    try:
        return np.dtype(dtype).itemsize
    except TypeError as error:
        raise SpecError(f"dtype {dtype!r} is not known; use a name such as float32, bfloat16 or int8") from error


def accumulator_dtype(dtype: str) -> str:
    """The dtype in which the matrix unit sums products of `dtype`: int32 for integers, else float32."""
    return "int32" if dtype.startswith(("int", "uint")) else "float32"


Side = Literal["lhs", "rhs", "out"]
PrecisionName = Literal["default", "high", "highest"]

# Passes of the matrix unit over bfloat16 parts of float32 operands. One part each; two parts each without the product
# of the small ones; three parts each, as the TPU compiler does it for Precision.HIGHEST.
PASSES: dict[PrecisionName, int] = {"default": 1, "high": 3, "highest": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An array that is read beside an operand or the output: a bias, a residual, scales, a mask.

    It has the shape of what it stands beside, or one row, or one column, or one element.
    """

    beside: Side
    rows: bool  # as many as the matrix; False: one
    columns: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandFn:
    """An elementwise function of an operand, applied before it is multiplied."""

    dtype: str  # that it makes
    ops: int = 1  # vector operations an element, at a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """What is done to operands on the way in and to the sum on the way out, in the same kernel."""

    extras: tuple[Extra, ...] = ()
    lhs_fn: OperandFn | None = None
    rhs_fn: OperandFn | None = None
    epilogue: str = ""  # in words, "bias, gelu"; empty: the sum is only cast
    epilogue_ops: int = 0  # vector operations an element, at a guess
    more_outputs: tuple[str, ...] = ()  # dtypes of further outputs of the shape [m, n]


def _require_countable(name: str, size: int) -> None:
    if size > LARGEST_SIZE:
        raise SpecError(f"{name} is above {LARGEST_SIZE}, the largest size that a TPU's 32-bit indices count")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulSpec:
    """The product `lhs[m, k] @ rhs[k, n] -> out[m, n]`, `batch` times.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, a dtype or the precision is unknown.
    """

    m: int
    k: int
    n: int
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str
    batch: int = 1
    batch_lhs: int = 1  # different matrices among the batch's
    batch_rhs: int = 1
    transpose_lhs: bool = False  # lhs is stored as [k, m]
    transpose_rhs: bool = False  # rhs is stored as [n, k]
    precision: PrecisionName = "default"
    fusion: Fusion = Fusion()

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            size = getattr(self, name)
            if size < 1:
                raise SpecError(f"{name}={size}: a matrix needs at least one row and one column")
            _require_countable(name, size)
        for name in ("batch", "batch_lhs", "batch_rhs"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)}: there has to be at least one matrix")
            _require_countable(name, getattr(self, name))
        for dtype in (self.dtype_lhs, self.dtype_rhs, self.dtype_out, *self.fusion.more_outputs):
            dtype_bytes(dtype)
        if self.precision not in PASSES:
            raise SpecError(f"precision={self.precision!r} is not known; use {', '.join(PASSES)}")

    @classmethod
    def of(cls, m: int, k: int, n: int, dtype: str, dtype_out: str | None = None) -> MatmulSpec:
        """Both operands of `dtype`; the output likewise, but int32 for integers, unless `dtype_out` says otherwise."""
        if dtype_out is None:
            dtype_out = "int32" if accumulator_dtype(dtype) == "int32" else dtype
        return cls(m=m, k=k, n=n, dtype_lhs=dtype, dtype_rhs=dtype, dtype_out=dtype_out)

    @property
    def dtype_accumulator(self) -> str:
        """The dtype of the running sum: int32 where both operands are integers."""
        kinds = {accumulator_dtype(dtype) for dtype in self._dtypes}
        return "int32" if kinds == {"int32"} else "float32"

    @property
    def _dtypes(self) -> tuple[str, str]:
        """Of both operands after their functions."""
        lhs_fn, rhs_fn = self.fusion.lhs_fn, self.fusion.rhs_fn
        return lhs_fn.dtype if lhs_fn else self.dtype_lhs, rhs_fn.dtype if rhs_fn else self.dtype_rhs

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes both operands: the wider one where they differ."""
        lhs, rhs = self._dtypes
        if lhs == rhs:
            return lhs
        if self.dtype_accumulator == "int32":
            return max(lhs, rhs, key=dtype_bytes)
        floats = [dtype for dtype in (lhs, rhs) if accumulator_dtype(dtype) == "float32"]
        return "float32" if "float32" in floats else "bfloat16"

    @property
    def passes(self) -> int:
        """How often the matrix unit goes over the operands; above one only for float32."""
        return PASSES[self.precision] if self.dtype_multiplied == "float32" else 1

    @property
    def flops(self) -> int:
        """Multiplications and additions, 2·m·k·n a matrix (exactly m·n·(2k − 1), which nobody counts)."""
        return 2 * self.batch * self.m * self.k * self.n

    @property
    def lhs_bytes(self) -> int:
        """Bytes of the left operand."""
        return self.batch_lhs * self.m * self.k * dtype_bytes(self.dtype_lhs)

    @property
    def rhs_bytes(self) -> int:
        """Bytes of the right operand."""
        return self.batch_rhs * self.k * self.n * dtype_bytes(self.dtype_rhs)

    @property
    def out_bytes(self) -> int:
        """Bytes of the result, and of further outputs."""
        width = sum(dtype_bytes(dtype) for dtype in (self.dtype_out, *self.fusion.more_outputs))
        return self.batch * self.m * self.n * width

    @property
    def extra_bytes(self) -> int:
        """Bytes of what is read beside the operands and the output, each once."""
        total = 0
        for extra in self.fusion.extras:
            rows, columns = {"lhs": (self.m, self.k), "rhs": (self.k, self.n), "out": (self.m, self.n)}[extra.beside]
            matrices = {"lhs": self.batch_lhs, "rhs": self.batch_rhs, "out": self.batch}[extra.beside]
            elements = (rows if extra.rows else 1) * (columns if extra.columns else 1)
            total += (matrices if extra.rows and extra.columns else 1) * elements * dtype_bytes(extra.dtype)
        return total

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes that have to cross HBM at the least: everything read once, the result written once."""
        return self.lhs_bytes + self.rhs_bytes + self.extra_bytes + self.out_bytes

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic intensity over the least traffic."""
        return self.flops / self.least_hbm_bytes
