"""How arrays are cut over a mesh whose axes are explicit, so that their types say so: read, chosen, and asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec, reshard

Names = tuple[str, ...]  # of an array's dimensions: m, k, n, batch0 …; "" where it is never cut
Axes = tuple[str, ...]  # of a mesh
Cuts = Mapping[str, Axes]  # the axes that cut each dimension


def cuts_of(arrays: Iterable[tuple[Array, Names]], last: tuple[str, ...]) -> dict[str, Axes]:
    """The axes that cut each dimension of an op.

    The first array that has a dimension decides. An axis that cuts two dimensions cuts the first of them in order of
    name, but those in `last` come behind the others, in their order there.
    """
    wanted: dict[str, Axes] = {}
    for array, names in arrays:
        for name, axes in zip(names, axes_of(array), strict=True):
            if name and axes:
                wanted.setdefault(name, axes)
    cuts: dict[str, Axes] = {}
    for name in sorted(wanted, key=lambda name: (last.index(name) if name in last else -1, name)):
        taken = {axis for axes in cuts.values() for axis in axes}
        if left := tuple(axis for axis in wanted[name] if axis not in taken):
            cuts[name] = left
    return cuts


def axes_of(array: Array) -> Iterator[Axes]:
    """For each dimension of an array the axes that cut it."""
    spec = jax.typeof(array).sharding.spec
    for each in (*spec, *(None for _ in range(array.ndim - len(spec)))):
        yield (each,) if isinstance(each, str) else tuple(each or ())


def spec_of(cuts: Cuts, names: Names) -> PartitionSpec:
    """How an array whose dimensions have these names is cut."""
    return PartitionSpec(*(cuts.get(name) for name in names))


def cut_as(array: Array, mesh: jax.sharding.AbstractMesh, spec: PartitionSpec) -> Array:
    """The array, cut so."""
    return array if jax.typeof(array).sharding.spec == spec else reshard(array, NamedSharding(mesh, spec))


def cut_like(array: Any, like: Array) -> Any:
    """The array with the sharding in the other's type: what a cotangent has to have. None stays None."""
    sharding = jax.typeof(like).sharding
    return array if array is None or not sharding.mesh.explicit_axes else cut_as(array, sharding.mesh, sharding.spec)
