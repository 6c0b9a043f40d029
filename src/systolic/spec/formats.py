"""The formats that arrays are quantized to, with the largest number of each."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from systolic.spec.dtypes import SpecError, dtype_bytes


class QuantizationError(SpecError):
    """An array that cannot be quantized as requested, or scales that do not match their values."""


# Integers use the largest number in both directions, so that the format is symmetric: -8 of int4 and -128 of
# int8 are read, but `quantize` does not make them.
LARGEST: dict[str, float] = {
    "int8": 127.0,
    "int4": 7.0,
    **{
        name: float(ml_dtypes.finfo(name).max)
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float4_e2m1fn")
    },
}
_FOUR_BITS = ("int4", "float4_e2m1fn")
_SHORT = {
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3b11": "float8_e4m3b11fnuz",
    "e2m1": "float4_e2m1fn",
    "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn",
}


def format_bytes(dtype: str, elements: int) -> int:
    """Return the bytes of this many elements: two of four bits share one, as JAX stores them on a TPU."""
    return -(-elements // 2) if dtype in _FOUR_BITS else elements * dtype_bytes(dtype)


def format_named(dtype: object) -> str:
    """Return a format's full name; e4m3, e5m2, e4m3b11, e2m1, fp8 (e4m3) and fp4 are short; raise for others."""
    name: Any = _SHORT.get(dtype, dtype) if isinstance(dtype, str) else dtype
    try:
        dtype_name = np.dtype(name).name
    except TypeError:
        dtype_name = str(dtype)
    if dtype_name not in LARGEST:
        raise QuantizationError(f"dtype={dtype_name!r} is not a format to quantize to; use {', '.join(LARGEST)}")
    return dtype_name
