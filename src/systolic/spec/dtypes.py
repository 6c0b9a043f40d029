"""Names of dtypes, the bytes of their elements, and the dtypes of their sums."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  registers bfloat16 and the float8 types with NumPy
import numpy as np

from systolic.support.call_errors import WrongCallError
from systolic.support.choices import unknown_name

# Common dtypes, for the message about an unknown name; any dtype of NumPy or ml_dtypes is accepted.
_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "int8", "int4")


class SpecError(WrongCallError, ValueError):
    """An impossible product: a size below one or above the largest that a TPU counts, or an unknown dtype."""


# An int32 surely holds the sum of this many products of int8 by int8: each is up to 128².
EXACT_INT32_PRODUCTS = (2**31 - 1) // 2**14


def parts_of_k(k: int) -> list[slice]:
    """Return slices of k that are short enough for an int32 sum without wrapping."""
    return [slice(first, first + EXACT_INT32_PRODUCTS) for first in range(0, max(k, 1), EXACT_INT32_PRODUCTS)]


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element of a NumPy or ml_dtypes name such as `"bfloat16"`; raise SpecError if unknown."""
    try:
        return np.dtype(dtype).itemsize
    except TypeError as error:
        raise SpecError(unknown_name("dtype", dtype, _DTYPES)) from error


def accumulator_dtype(dtype: str) -> str:
    """Return the dtype in which the matrix unit sums products of `dtype`: int32 for integers, else float32."""
    return "int32" if dtype.startswith(("int", "uint")) else "float32"


# Of `kernels.epilogue.as_dtype`: two limits for an int32; for a float also NaN, rounding, a cast and the largest int32.
_SATURATE_OPS = {"int32": 2, "float32": 8}


def cast_op_count(dtype_from: str, dtype_to: str) -> int:
    """Return the vector operations that cast an element of a sum; to an integer, they round and saturate it."""
    if accumulator_dtype(dtype_to) == "int32":
        return _SATURATE_OPS[accumulator_dtype(dtype_from)] + (dtype_to != "int32")
    return int(dtype_from != dtype_to)
