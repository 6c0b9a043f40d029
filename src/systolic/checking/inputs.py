"""Make the arguments of a run: given values, and random values for arguments that have only a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from systolic.compat import key_implementation
from systolic.support.bugs import runs_user_code

# Small enough that sums of products of 8-bit operands stay exact in int32 for any k, large enough to distinguish
# elements.
_LARGEST_INTEGER = 7


Data = Literal["normal", "large", "offset", "negative", "repeated"]
# Inputs in addition to standard normal numbers. Each shows a fault that those hide: overflow of unscaled numbers,
# cancellation, conditions that no positive number meets, ties and blocks of zeros.
HARDER: dict[Data, str] = {
    "large": "floats × 100 and integers of the whole range",
    "offset": "floats around 1000 and positive integers",
    "negative": "negative numbers",
    "repeated": "few different numbers and blocks of zeros",
}
_FACTOR, _OFFSET = 100.0, 1000.0
_FEW = (-1.0, 0.5, 1.0, 2.0)


class NoInputError(ValueError):
    """No values can be drawn for an argument of this type."""


def made_up(
    leaves: Sequence[Any], values: Sequence[np.ndarray | None], seed: int, *, indices: bool, data: Data = "normal"
) -> list[np.ndarray]:
    """Make the flat arguments: given values, and random ones by the seed for the others.

    "normal" data are normally distributed floats, integers from −7 to 7 (0 to 7 if unsigned), and random booleans;
    `HARDER` lists the others. Integers of 32 bits and more may be sizes and indices, and stay small.

    Args:
      leaves: shapes and dtypes.
      values: the values of the same arguments; None: to be drawn.
      seed: the seed of the drawn values.
      indices: make integers of 32 bits zero, because a kernel prefetches scalars, which may choose blocks.
      data: the kind of numbers.

    Raises:
      NoInputError: an argument is not an array of numbers, such as a key for random numbers.
    """
    random = np.random.default_rng(seed)
    return [
        _array(leaf, random, indices=indices, data=data) if value is None else np.asarray(value)
        for leaf, value in zip(leaves, values, strict=True)
    ]


def _array(leaf: Any, random: np.random.Generator, *, indices: bool, data: Data) -> np.ndarray:
    import jax
    import jax.numpy as jnp

    shape, dtype = tuple(leaf.shape), leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise NoInputError(f"an argument of type {dtype} cannot be drawn; bind it with functools.partial")
    if dtype == np.bool_:
        return random.integers(0, 1, shape, endpoint=True).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        if indices and is_index(leaf):
            return np.zeros(shape, dtype)
        least, largest = _range(dtype, data)
        drawn = random.integers(least, largest, shape, endpoint=True).astype(dtype)
        return _with_zeros(drawn) if data == "repeated" else drawn
    drawn = _floats(random, shape, data, float(jnp.finfo(dtype).max))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (drawn + 1j * _floats(random, shape, data, float(jnp.finfo(dtype).max))).astype(dtype)
    return drawn.astype(dtype)


def _range(dtype: Any, data: Data) -> tuple[int, int]:
    """Return the smallest and the largest integer."""
    import jax.numpy as jnp

    limits = jnp.iinfo(dtype)
    small = max(int(limits.min), -_LARGEST_INTEGER), min(int(limits.max), _LARGEST_INTEGER)
    if dtype.itemsize >= 4 or data in ("normal", "repeated"):
        return small
    if data == "negative":
        return int(limits.min), -1 if limits.min else 0
    return (0 if data == "offset" else int(limits.min)), int(limits.max)


def _floats(random: np.random.Generator, shape: tuple[int, ...], data: Data, largest: float) -> np.ndarray:
    drawn = random.standard_normal(shape, np.float32)
    if data == "large":
        drawn *= _FACTOR
    elif data == "offset":
        drawn += min(_OFFSET, largest / 8)
    elif data == "negative":
        drawn = -np.abs(drawn)
    elif data == "repeated":
        drawn = _with_zeros(random.choice(np.array(_FEW, np.float32), shape))
    return np.clip(drawn, -largest / 4, largest / 4)  # less than 400 for floats of eight bits


def _with_zeros(array: np.ndarray) -> np.ndarray:
    """Return the array with zeros in the first half of its rows, or of its only dimension."""
    axis = max(array.ndim - 2, 0)
    if array.ndim:
        array[(slice(None),) * axis + (slice(array.shape[axis] // 2),)] = 0
    return array


def is_index(leaf: Any) -> bool:
    """True if an argument has the type of scalars that a kernel prefetches."""
    import jax.numpy as jnp

    return jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.dtype.itemsize >= 4


def are_groups_of(value: np.ndarray, size: int) -> bool:
    """True if an array holds sizes of groups whose sum is a dimension."""
    return value.dtype.kind in "iu" and value.size > 1 and int(value.min()) >= 0 and int(value.sum()) == size


def regrouped(value: np.ndarray | None, changes: Mapping[int, int]) -> np.ndarray | None:
    """Sizes of groups for another total: empty groups stay empty, the others keep their shares as far as they can."""
    total = None if value is None else next((size for size in changes if are_groups_of(value, size)), None)
    if value is None or total is None:
        return value
    new_total = changes[total]
    exact = value.astype(np.float64) * new_total / total
    shares = np.maximum(np.floor(exact), value > 0).astype(np.int64)
    # The remainder of the rounding goes to the groups with the largest rounding errors.
    while new_total > shares.sum():
        shares.flat[int(np.argmax(np.where(value > 0, exact - shares, -np.inf)))] += 1
    while new_total < shares.sum():
        shares.flat[int(np.argmin(np.where(shares > 1, exact - shares, np.inf)))] -= 1
    return shares.astype(value.dtype)


@dataclass(frozen=True, slots=True)
class Flat:
    """A function of flat arguments in place of one of trees.

    Attributes:
      keys: by argument, functions that make random keys from the integers that replace them.
    """

    fn: Callable[..., Any]
    tree: Any
    keys: Mapping[int, str] = field(default_factory=dict)

    @runs_user_code
    def __call__(self, *leaves: Any) -> Any:
        """Call it."""
        import jax

        arguments = [
            jax.random.wrap_key_data(leaf, impl=self.keys[at]) if at in self.keys else leaf
            for at, leaf in enumerate(leaves)
        ]
        return self.fn(*jax.tree.unflatten(self.tree, arguments))


def without_keys(leaves: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
    """Replace random keys by integers; return, by argument, functions that make the keys of them."""
    import jax

    keys = {at: key_implementation(leaf.dtype) for at, leaf in enumerate(leaves) if _is_key(leaf)}
    return [jax.eval_shape(jax.random.key_data, leaf) if at in keys else leaf for at, leaf in enumerate(leaves)], keys


def _is_key(leaf: Any) -> bool:
    import jax
    import jax.numpy as jnp

    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
