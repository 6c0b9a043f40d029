"""What a compilation needs of the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def abstract_arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with every array replaced by its shape and dtype.

    Args:
        args: pytrees of arrays, `jax.ShapeDtypeStruct`s and Python numbers.

    Returns:
        The same pytrees, with a `jax.ShapeDtypeStruct` at each leaf.
    """
    import jax

    return jax.eval_shape(lambda *values: values, *args)
