"""Reduce arguments to the parts that a compilation needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.support.bugs import runs_user_code

# Contents decide the control flow of a few kernels, and those contents are small: indices, group sizes, masks. Larger
# arrays are not sent to another process for nothing.
MAX_ARGUMENT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """An array with the sharding that it would have on a slice, where no device of it is."""

    value: np.ndarray
    sharding: Any


@runs_user_code  # JAX says what is not an argument of a traced function
def abstract_arguments(args: Sequence[Any], *, shardings: bool = False) -> tuple[Any, ...]:
    """Return the arguments, pytrees of arrays or Python numbers, with a `jax.ShapeDtypeStruct` at each leaf.

    Their shardings over the devices of a slice are kept if `shardings`.
    """
    import jax

    leaves, tree = jax.tree.flatten(tuple(args))
    shapes = jax.eval_shape(lambda *values: values, *map(_unplaced, leaves))
    if shardings:
        shapes = [
            jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=slice_sharding(leaf), weak_type=shape.weak_type)
            for shape, leaf in zip(shapes, leaves, strict=True)
        ]
    return tree.unflatten(shapes)


def slice_sharding(leaf: Any) -> Any:
    """Find how an argument is sharded over a slice; None: not at all, as an array in this process' memory."""
    import jax

    sharding = getattr(leaf, "sharding", None)
    return None if isinstance(leaf, jax.Array) and len(leaf.devices()) == 1 else sharding


def _unplaced(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, PlacedArray) else leaf


def argument_values(args: Sequence[Any]) -> list[np.ndarray | None]:
    """Return the contents of the arguments' leaves, in order; None for shapes and for large arrays."""
    import jax

    def value(leaf: Any) -> np.ndarray | None:
        leaf = _unplaced(leaf)
        if isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "nbytes", 0) > MAX_ARGUMENT_BYTES:
            return None
        try:
            # As `jit` takes it: a Python number is 32 bits wide unless JAX is told otherwise.
            dtype = leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
            return np.asarray(leaf, dtype=jax.dtypes.canonicalize_dtype(dtype))
        except (TypeError, ValueError):
            return None

    return [value(leaf) for leaf in jax.tree.leaves(args)]
