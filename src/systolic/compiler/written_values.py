"""Read contents of arguments from text or a file, exactly as written, or refuse them.

NumPy and JAX would wrap integers that are too large for a dtype, cut off fractions, and turn floats that are too large
into infinity.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, BinaryIO

import numpy as np

from systolic.support.untrusted import shown

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?", re.ASCII)
_NO_FINITE_NUMBER = re.compile(r"[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_TRUTH_VALUES = {"1": True, "0": False, "true": True, "false": False}
_FINITE = 2  # index of its kind: NaN, infinite, finite
_MAX_CHARACTERS = 1000  # in a number


class ArgumentValueError(ValueError):
    """A value that the dtype cannot hold."""


def held_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which JAX holds an array of `dtype`: 32 bits for 64, unless JAX_ENABLE_X64 is set.

    Raises:
        TypeError: JAX has no such arrays: text, dates, Python objects.
    """
    import jax

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns that it reduces 64 bits
        return np.dtype(jax.eval_shape(lambda: jax.numpy.zeros((), dtype)).dtype)


def exact_values(words: Sequence[str], dtype: np.dtype) -> np.ndarray:
    """Return numbers that were written out, as an array of a dtype.

    Integers and truth values are exact, floats are rounded to the nearest value of the dtype.

    Raises:
        ArgumentValueError: a word is not a number, or the dtype cannot hold it.
    """
    import jax

    words = [word.strip() for word in words]
    held = held_dtype(dtype)
    if dtype == np.bool_:
        return np.array([_truth_value(word) for word in words])
    numbers = [_number(word, dtype) for word in words]
    if not jax.numpy.issubdtype(dtype, np.integer):
        return _floats(words, numbers, held)
    low, high = _limits(held)
    for word, number in zip(words, numbers, strict=True):
        if not number.is_finite() or number != number.to_integral_value():
            raise ArgumentValueError(
                f"{shown(word)} is not an integer, as {dtype} requires; give an integer, or a float dtype"
            )
        if not low <= number <= high:
            raise ArgumentValueError(_out_of_range(word, dtype, held))
    return np.array([int(number) for number in numbers], dtype=np.int64 if low < 0 else np.uint64).astype(dtype)


def checked_array(array: np.ndarray) -> np.ndarray:
    """Return the array; raise ArgumentValueError if JAX cannot hold its dtype or its integers."""
    import jax

    try:
        held = held_dtype(array.dtype)
    except TypeError as error:
        raise ArgumentValueError(f"JAX has no arrays of {array.dtype}; save it with another dtype") from error
    if held != array.dtype and array.size and jax.numpy.issubdtype(held, np.integer):
        low, high = _limits(held)
        for value in (int(array.min()), int(array.max())):
            if not low <= value <= high:
                raise ArgumentValueError(_out_of_range(str(value), array.dtype, held))
    return array


def read_npy(file: BinaryIO) -> np.ndarray:
    """Return the array of a .npy file, after a check that the file has the size that its header states.

    Raises:
        ValueError: it is not a .npy file, holds Python objects, or ends too soon.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version[0]}.{version[1]} of .npy is not supported; save it with numpy.save")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except Exception as error:  # NumPy evaluates it as Python, which raises errors of any kind
        raise ValueError(f"its header cannot be read: {shown(str(error))}") from error
    left_bytes = os.fstat(file.fileno()).st_size - file.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > left_bytes:
        raise ValueError(
            f"its header states {math.prod(shape):,} elements of {dtype}, but it holds {left_bytes:,} bytes"
        )
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _truth_value(word: str) -> bool:
    if word.lower() not in _TRUTH_VALUES:
        raise ArgumentValueError(f"{shown(word)} is not a truth value: give 1, 0, true or false")
    return _TRUTH_VALUES[word.lower()]


def _number(word: str, dtype: np.dtype) -> Decimal:
    if len(word) <= _MAX_CHARACTERS and (_NUMBER.fullmatch(word) or _NO_FINITE_NUMBER.fullmatch(word)):
        return Decimal(word)
    raise ArgumentValueError(f"{shown(word)} is not a number for {dtype}")


def _floats(words: Sequence[str], numbers: Sequence[Decimal], held: np.dtype) -> np.ndarray:
    import jax

    values = np.array([float(word) for word in words])
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(held)
    back = made.astype(np.complex128 if held.kind == "c" else np.float64)
    # Some small formats have no infinity, and would round numbers far beyond their largest value to it.
    limits: Any = jax.numpy.finfo(held)
    largest = float(limits.max) * (1 + float(limits.eps) / 4)
    kinds = np.stack([np.isnan(back), np.isinf(back), np.isfinite(back)])
    for at, (word, number) in enumerate(zip(words, numbers, strict=True)):
        kind = (number.is_nan(), number.is_infinite(), number.is_finite()).index(True)
        if not kinds[kind, at] or (kind == _FINITE and abs(values[at]) > largest):
            raise ArgumentValueError(_out_of_range(word, held, held))
    return made


def _limits(dtype: np.dtype) -> tuple[int, int]:
    import jax

    limits: Any = jax.numpy.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _out_of_range(word: str, dtype: np.dtype, held: np.dtype) -> str:
    import jax

    limits: Any = jax.numpy.iinfo(held) if jax.numpy.issubdtype(held, np.integer) else jax.numpy.finfo(held)
    wider = f", in which JAX holds {dtype} unless JAX_ENABLE_X64=1 is set" if held != dtype else ""
    return f"{shown(word)} is not among the values of {held}, {limits.min} to {limits.max}{wider}; give another dtype"
