"""Other meshes and shardings of the same function on a slice: other sizes of axes, orders of devices, and specs.

A mesh is changed wherever the call names it: in the shardings of its arguments, in those that its `jax.jit` was given,
and where it is set. A mesh that the function itself holds, as in a `jax.shard_map` that was made before, stays; then
JAX refuses another order of devices, and that is the outcome.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from systolic.chips import SliceShape
from systolic.compiler import PlacedArray, slice_mesh, with_jit_options
from systolic.compiler.jit_options import FunctionWithOptions
from systolic.explaining.candidates import Candidate

_MAX_LISTED_DEVICES = 16  # devices whose order is written out


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCandidate:
    """A function with another mesh or other shardings: its title, and how to call it."""

    candidate: Candidate
    fn: Any
    args: tuple[Any, ...]


def mesh_candidates(fn: Any, args: Sequence[Any], shape: SliceShape) -> list[MeshCandidate]:
    """List other meshes and shardings to try, one of each kind in turn: sizes, orders, specs of an argument.

    There are none where the call names no mesh, or several.
    """
    call = with_jit_options(fn), tuple(args)
    mesh = only_mesh(*call)
    if mesh is None:
        return []
    kinds = [list(_sizes(*call, mesh, shape)), list(_orders(*call, mesh, shape)), list(_specs(*call, mesh))]
    return [change for turn in itertools.zip_longest(*kinds) for change in turn if change is not None]


def only_mesh(fn: Any, args: Sequence[Any]) -> Any:
    """Return the mesh of all shardings of a call; None if there is none, or several."""
    meshes = []
    _changed(fn, args, lambda sharding: meshes.append(sharding.mesh) or sharding)
    if isinstance(fn, FunctionWithOptions) and fn.options.mesh is not None:
        meshes.append(fn.options.mesh)
    return meshes[0] if meshes and all(mesh == meshes[0] for mesh in meshes) else None


def _sizes(fn: Any, args: tuple[Any, ...], mesh: Any, shape: SliceShape) -> Iterator[MeshCandidate]:
    """Return a mesh of these axes with other sizes, with the devices in JAX's own order."""
    names = tuple(mesh.axis_names)
    for sizes in _factors(mesh.devices.size, len(names)):
        if sizes == mesh.devices.shape:
            continue
        named = dict(zip(names, sizes, strict=True))
        if not _divides(args, named):
            continue
        text = ",".join(f"{name}={size}" for name, size in named.items())
        yield _on_another_mesh(
            fn,
            args,
            slice_mesh(shape.chip, shape.name, **named),
            title=f"mesh {text}",
            change=f"--mesh {text}, or slice_mesh(…, {text.replace(',', ', ')})",
            why="other devices share each axis, so other bytes go between other chips",
        )


def _orders(fn: Any, args: tuple[Any, ...], mesh: Any, shape: SliceShape) -> Iterator[MeshCandidate]:
    """Return a mesh with its devices in another order: along another axis of the slice first, or back and forth."""
    import numpy as np
    from jax.sharding import Mesh

    flat = list(mesh.devices.flat)
    by_id = {device.id: device for device in flat}
    seen = {tuple(device.id for device in flat)}
    # Back and forth along the longest axis is a ring where a slice is two chips wide.
    longest_first = sorted(range(len(shape.extents)), key=lambda axis: -shape.extents[axis])
    for forth, order in itertools.product((True, False), itertools.permutations(longest_first)):
        ids = device_order(shape, order, back_and_forth=forth)
        if ids in seen or set(ids) != set(by_id):
            continue
        seen.add(ids)
        axes = ", then ".join("xyz"[axis] for axis in order)
        devices = np.array([by_id[number] for number in ids]).reshape(mesh.devices.shape)
        shown = ",".join(map(str, ids[:_MAX_LISTED_DEVICES])) + ("…" if len(ids) > _MAX_LISTED_DEVICES else "")
        yield _on_another_mesh(
            fn,
            args,
            Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types),
            title=f"devices along {axes}{', back and forth' if forth else ''}",
            change=f"Mesh of slice_devices(…) with the ids {shown}",
            why="neighbours in the mesh are other neighbours on the slice",
        )


def device_order(shape: SliceShape, order: Sequence[int], *, back_and_forth: bool) -> tuple[int, ...]:
    """List device ids of a slice along its axes, devices of one chip together.

    Args:
      shape: the slice.
      order: its axes; the walk goes along the first one first.
      back_and_forth: True if every other line is walked backwards, so that each chip is next to the one before.
    """
    extents = [shape.extents[axis] for axis in order]
    cores = shape.chip.devices_per_chip
    ids = []
    for number in range(math.prod(extents)):
        coords, lines = [0] * len(shape.extents), number
        for axis, extent in zip(order, extents, strict=True):
            lines, at = divmod(lines, extent)
            # `lines` is the number of whole lines along this axis before this place.
            coords[axis] = extent - 1 - at if back_and_forth and lines % 2 else at
        ids += [shape.chip_at(tuple(coords)) * cores + core for core in range(cores)]
    return tuple(ids)


def _specs(fn: Any, args: tuple[Any, ...], mesh: Any) -> Iterator[MeshCandidate]:
    """Yield the argument with other shardings: an axis moved to another dimension, left out, or two axes swapped."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    leaves, tree = jax.tree.flatten(args)
    for at, leaf in enumerate(leaves):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            continue
        before = _by_dimension(sharding.spec, len(_shape(leaf)))
        for after in _other_specs(before):
            if any(size % _shards(axes, mesh) for size, axes in zip(_shape(leaf), after, strict=True)):
                continue
            spec = PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in after))
            moved = list(leaves)
            moved[at] = _sharded(leaf, NamedSharding(mesh, spec))
            text, held = _spec_text(after), [_held(leaf, sharding, mesh) for sharding in (after, before)]
            yield MeshCandidate(
                candidate=Candidate(
                    title=f"argument {at + 1} sharded @{text}",
                    change=f"@{text} in place of @{_spec_text(before)} for argument {at + 1}",
                    why=f"each device then holds {held[0]} of it in place of {held[1]}",
                ),
                fn=fn,
                args=tree.unflatten(moved),
            )


Spec = tuple[tuple[str, ...], ...]  # for each dimension, the mesh axes that share it


def _by_dimension(spec: Iterable[Any], dimensions: int) -> Spec:
    axes_by_dimension = [
        () if names is None else (names,) if isinstance(names, str) else tuple(names) for names in spec
    ]
    return tuple(axes_by_dimension + [()] * (dimensions - len(axes_by_dimension)))


def _other_specs(before: Spec) -> Iterator[Spec]:
    """Specs that differ in one axis, or in two that change places."""
    used = [(at, axis) for at, axes in enumerate(before) for axis in axes]
    for (at, axis), (other, another) in itertools.combinations(used, 2):
        if at != other:
            swap = {axis: another, another: axis}
            yield tuple(tuple(swap.get(name, name) for name in axes) for axes in before)
    without = {axis: tuple(tuple(name for name in axes if name != axis) for axes in before) for _, axis in used}
    for (at, axis), other in itertools.product(used, range(len(before))):
        if other != at:
            yield tuple((*axes, axis) if place == other else axes for place, axes in enumerate(without[axis]))
    yield from without.values()


def _shards(axes: Iterable[str], mesh: Any) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _held(leaf: Any, spec: Spec, mesh: Any) -> str:
    """Return the share of an argument that a device holds."""
    shards = _shards((axis for axes in spec for axis in axes), mesh)
    size_bytes = math.prod(_shape(leaf)) * _dtype(leaf).itemsize // shards
    return f"{size_bytes / 1e6:,.2f} MB"


def _spec_text(spec: Spec) -> str:
    """Write a spec as `--arg` takes it: "data,-"."""
    return ",".join("+".join(axes) or "-" for axes in spec)


def _on_another_mesh(fn: Any, args: tuple[Any, ...], mesh: Any, *, title: str, change: str, why: str) -> MeshCandidate:
    from jax.sharding import NamedSharding

    changed_fn, changed_args = _changed(fn, args, lambda sharding: NamedSharding(mesh, sharding.spec))
    if isinstance(changed_fn, FunctionWithOptions) and changed_fn.options.mesh is not None:
        changed_fn = replace(changed_fn, options=replace(changed_fn.options, mesh=mesh))
    candidate = Candidate(title=title, change=change, why=why)
    return MeshCandidate(candidate=candidate, fn=changed_fn, args=changed_args)


def _changed(fn: Any, args: Sequence[Any], change: Callable[[Any], Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a call with all of its shardings changed."""
    import jax
    from jax.sharding import NamedSharding

    def placed(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return leaf
        return _sharded(leaf, change(sharding))

    def of_options(sharding: Any) -> Any:
        return change(sharding) if isinstance(sharding, NamedSharding) else sharding

    if isinstance(fn, FunctionWithOptions):
        options = fn.options
        changed = [jax.tree.map(of_options, shardings) for shardings in (options.in_shardings, options.out_shardings)]
        fn = replace(fn, options=replace(options, in_shardings=changed[0], out_shardings=changed[1]))
    return fn, tuple(jax.tree.map(placed, tuple(args)))


def _sharded(leaf: Any, sharding: Any) -> Any:
    """Return an argument with another sharding; known contents stay."""
    import jax

    if isinstance(leaf, PlacedArray):
        return PlacedArray(leaf.value, sharding)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _shape(leaf: Any) -> tuple[int, ...]:
    return (leaf.value if isinstance(leaf, PlacedArray) else leaf).shape


def _dtype(leaf: Any) -> Any:
    return (leaf.value if isinstance(leaf, PlacedArray) else leaf).dtype


def _factors(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield all ordered factorizations of a number of devices into `axes` factors."""
    if axes == 1:
        yield (devices,)
        return
    for first in range(1, devices + 1):
        if devices % first == 0:
            yield from ((first, *rest) for rest in _factors(devices // first, axes - 1))


def _divides(args: Sequence[Any], sizes: dict[str, int]) -> bool:
    """True if axes of these sizes cut every argument into equal parts."""
    import jax

    for leaf in jax.tree.leaves(args):
        spec = getattr(getattr(leaf, "sharding", None), "spec", None)
        if spec is None:
            continue
        for size, axes in zip(_shape(leaf), _by_dimension(spec, len(_shape(leaf))), strict=True):
            if size % math.prod(sizes[axis] for axis in axes):
                return False
    return True
