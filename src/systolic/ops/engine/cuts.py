"""The cuts of arrays over a mesh with explicit axes: read from the arrays' types, chosen, and computed with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec, reshard

Names = tuple[str, ...]  # of an array's dimensions: m, k, n, batch0 …; "" where it is never cut
Axes = tuple[str, ...]  # of a mesh
Cuts = Mapping[str, Axes]  # the axes that cut each dimension


def cuts_of(arrays: Any, names: Any, last: tuple[str, ...]) -> dict[str, Axes]:
    """Return the axes that cut each dimension of an op.

    The first array that has a dimension decides. An axis that cuts two dimensions cuts the first of them in order of
    name, but those in `last` come after the others, in their order there.

    Args:
      arrays: in nested tuples, None for an absent one.
      names: names of their dimensions, in the same nesting.
    """
    requested_axes: dict[str, Axes] = {}
    for array, array_names in _named(arrays, names):
        for name, axes in zip(array_names, axes_of(array), strict=True):
            if name and axes:
                requested_axes.setdefault(name, axes)
    cuts: dict[str, Axes] = {}
    for name in sorted(requested_axes, key=lambda name: (last.index(name) if name in last else -1, name)):
        used_axes = {axis for axes in cuts.values() for axis in axes}
        if left := tuple(axis for axis in requested_axes[name] if axis not in used_axes):
            cuts[name] = left
    return cuts


def axes_of(array: Array) -> Iterator[Axes]:
    """Yield for each dimension of an array the axes that cut it."""
    yield from _axes_of_spec(jax.typeof(array).sharding.spec, array.ndim)


def _axes_of_spec(spec: PartitionSpec, rank: int) -> Iterator[Axes]:
    for axes in (*spec, *(None for _ in range(rank - len(spec)))):
        yield (axes,) if isinstance(axes, str) else tuple(axes or ())


def out_cut_of(array: Array) -> tuple[Axes, ...] | None:
    """Return the axes that cut each dimension of an array on a mesh with explicit axes; None on any other."""
    sharding = jax.typeof(array).sharding
    return cut_of_spec(sharding.spec, array.ndim) if sharding.mesh.explicit_axes else None


def cut_of_spec(spec: PartitionSpec, rank: int) -> tuple[Axes, ...]:
    """Return the axes that cut each dimension of an array."""
    return tuple(_axes_of_spec(spec, rank))


def parts_of(mesh: Any, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def on_devices(
    compute: Callable[..., Any],
    mesh: Any,
    cuts: Cuts,
    arrays: tuple[Any, ...],
    names: tuple[Any, ...],
    made: Any,
    *,
    differentiated: bool = False,
) -> Any:
    """Return `compute` of the parts that each device has; it has the mesh's explicit axes to itself.

    Args:
      arrays, names: as `cuts_of` takes them.
      made: names of the result's dimensions: of one array, or of several in a tuple.
      differentiated: True if JAX is to differentiate it; JAX then checks which values vary over the devices.
    """
    structure = jax.tree.structure(arrays)
    leaves, flat_names = zip(*_named(arrays, names), strict=True)
    specs = tuple(spec_of(cuts, name) for name in flat_names)
    parts = [cut_as(leaf, mesh, spec) for leaf, spec in zip(leaves, specs, strict=True)]
    is_single = all(isinstance(name, str) for name in made)
    mapped = jax.shard_map(
        lambda *parts: compute(*structure.unflatten(parts)),
        mesh=mesh,
        in_specs=specs,
        out_specs=spec_of(cuts, made) if is_single else tuple(spec_of(cuts, array_names) for array_names in made),
        axis_names=frozenset(mesh.explicit_axes),
        check_vma=differentiated,
    )
    return jax.jit(mapped)(*parts)  # without `jit` it takes no mesh without devices


def spec_of(cuts: Cuts, names: Names) -> PartitionSpec:
    return PartitionSpec(*(cuts.get(name) for name in names))


def cut_as(array: Array, mesh: Any, spec: PartitionSpec) -> Array:
    return array if jax.typeof(array).sharding.spec == spec else reshard(array, NamedSharding(mesh, spec))


def cut_like(array: Any, like: Array) -> Any:
    """Return the array with the sharding of `like`, as a cotangent must have it. None stays None."""
    if array is None:
        return None
    sharding = jax.typeof(like).sharding
    return cut_as(array, sharding.mesh, sharding.spec) if sharding.mesh.explicit_axes else array


def _named(arrays: Sequence[Any], names: Sequence[Any]) -> Iterator[tuple[Array, Names]]:
    """Yield each array of nested tuples with the names of its dimensions; None is left out."""
    for item, array_names in zip(arrays, names, strict=True):
        if isinstance(item, tuple):
            yield from _named(item, array_names)
        elif item is not None:
            yield item, array_names
