"""Fill unwritten memory while a kernel is checked: on a TPU it may hold anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# Contents of unwritten memory: far above data, but no product of three of them, nor a sum of these, is infinite.
_LARGE = 1e12


def left_over(shape: Sequence[int], dtype: Any, memory: str) -> np.ndarray:
    """Make the contents of unwritten memory: NaN and the largest integers, zeros, or large numbers.

    Args:
      shape: its shape.
      dtype: its type.
      memory: "nan", "zero" or "large".
    """
    import jax.numpy as jnp

    if memory == "zero":
        return np.zeros(shape, dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        largest = min(_LARGE, float(jnp.finfo(dtype).max) / 8)
        values = (largest, -largest / 3) if memory == "large" else (np.nan, np.nan)
    elif jnp.issubdtype(dtype, jnp.integer):
        largest, least = jnp.iinfo(dtype).max, jnp.iinfo(dtype).min
        values = (largest // 2, least // 3) if memory == "large" else (largest, largest)
    elif dtype == np.bool_:
        values = (False, True) if memory == "large" else (True, True)
    else:
        raise NotImplementedError(f"unwritten memory of type {dtype}")
    if memory != "large":
        return np.full(shape, values[0], dtype)
    odd = np.arange(math.prod(shape)).reshape(shape) % 2 == 1
    return np.where(odd, np.asarray(values[1], dtype), np.asarray(values[0], dtype))
