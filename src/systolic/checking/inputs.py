"""Arguments for a run: what was given, and otherwise random values of a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Small enough that sums of products of 8-bit operands stay exact in int32 for any k, large enough to tell elements
# apart.
_LARGEST_INTEGER = 7


class NoInputError(ValueError):
    """No values can be made up for an argument of this type."""


def made_up(
    leaves: Sequence[Any], values: Sequence[np.ndarray | None], seed: int, *, indices: bool
) -> list[np.ndarray]:
    """Flat arguments: the values where they are given, else of the seed.

    Floats are standard normal, integers from −7 to 7 (0 to 7 without a sign), booleans either.

    Args:
      leaves: shapes and dtypes.
      values: of the same arguments; None: to be made up.
      seed: of the values.
      indices: integers of 32 bits are zeros: a kernel prefetches scalars, which may choose blocks.

    Raises:
      NoInputError: an argument is no array of numbers, such as a key for random numbers.
    """
    random = np.random.default_rng(seed)
    return [
        _array(leaf, random, indices=indices) if value is None else np.asarray(value)
        for leaf, value in zip(leaves, values, strict=True)
    ]


def _array(leaf: Any, random: np.random.Generator, *, indices: bool) -> np.ndarray:
    import jax
    import jax.numpy as jnp

    shape, dtype = tuple(leaf.shape), leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise NoInputError(f"an argument of type {dtype} cannot be made up; bind it with functools.partial")
    if dtype == np.bool_:
        return random.integers(0, 1, shape, endpoint=True).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        if indices and is_index(leaf):
            return np.zeros(shape, dtype)
        lowest = 0 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -_LARGEST_INTEGER
        return random.integers(lowest, _LARGEST_INTEGER, shape, endpoint=True).astype(dtype)
    drawn = random.standard_normal(shape, np.float32)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (drawn + 1j * random.standard_normal(shape, np.float32)).astype(dtype)
    return drawn.astype(dtype)


def is_index(leaf: Any) -> bool:
    """Whether an argument has the type of scalars that a kernel prefetches."""
    import jax.numpy as jnp

    return jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.dtype.itemsize >= 4
