"""Where versions of JAX differ: every difference that this package has to know is here, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a `scan` equation's inputs are constants, and how many are carried from round to round.

    jax 0.10 and 0.11 have the numbers among the equation's parameters, 0.12 has the three groups of inputs.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def shape_with_mesh_axes(shape: Sequence[int], dtype: Any, inputs: Sequence[Any]) -> Any:
    """A `jax.ShapeDtypeStruct` that varies over whatever mesh axes the inputs vary over.

    Under `shard_map` a kernel has to say so of its outputs.
    """
    import jax

    found = [getattr(jax.typeof(array), "manual_axis_type", None) for array in inputs]
    axes = frozenset[Any]().union(*(one.varying for one in found if one is not None))
    if not axes:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    return jax.ShapeDtypeStruct(tuple(shape), dtype, manual_axis_type=jax.sharding.ManualAxisType(varying=axes))
