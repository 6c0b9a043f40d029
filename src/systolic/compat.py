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


def _varying(array: Any) -> frozenset[Any]:
    """Mesh axes over which an array varies; none outside of `shard_map`."""
    import jax

    found = getattr(jax.typeof(array), "manual_axis_type", None)
    return frozenset[Any](found.varying) if found is not None else frozenset()


def varying_alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, each varying over all mesh axes over which one of them does."""
    import jax

    axes = frozenset[Any]().union(*map(_varying, arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return [
        jax.lax.pcast(array, lacking, to="varying") if lacking else array
        for array, lacking in zip(arrays, missing, strict=True)
    ]


def shape_with_mesh_axes(shape: Sequence[int], dtype: Any, inputs: Sequence[Any]) -> Any:
    """A `jax.ShapeDtypeStruct` that varies over whatever mesh axes the inputs vary over.

    Under `shard_map` a kernel has to say so of its outputs.
    """
    import jax

    axes = frozenset[Any]().union(*map(_varying, inputs))
    if not axes:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    return jax.ShapeDtypeStruct(tuple(shape), dtype, manual_axis_type=jax.sharding.ManualAxisType(varying=axes))
