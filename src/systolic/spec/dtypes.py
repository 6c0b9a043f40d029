"""Names of dtypes: how many bytes an element has, and in what products of it are summed."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  registers bfloat16 and the float8 types with NumPy
import numpy as np

from systolic.call_errors import WrongCallError


class SpecError(WrongCallError, ValueError):
    """A product that cannot be: a size below one or past what a TPU counts, an unknown dtype."""


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
