"""Meshes and sharded arguments that are given as text: `data=2,model=4` and `bf16[8192,28672]@-,model`."""

from __future__ import annotations

import re
from typing import Any

from systolic.chips import SliceError
from systolic.compiler.arguments import PlacedArray
from systolic.compiler.named import named_argument
from systolic.support.untrusted import shown

_AXIS = re.compile(r"([^\W\d]\w{0,99})=([1-9]\d{0,5})", re.ASCII)
_WHOLE = "-"


def mesh_axes(text: str) -> dict[str, int]:
    """Return the axes and sizes of a mesh from text such as `data=2,model=4`; raise SliceError for other text."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = _AXIS.fullmatch(part.strip())
        if match is None:
            raise SliceError(f"{shown(part.strip())} is not an axis of a mesh: write NAME=SIZE, as in data=2,model=4")
        if match[1] in axes:
            raise SliceError(f"the mesh {shown(text)} has the axis {match[1]} twice")
        axes[match[1]] = int(match[2])
    return axes


def sharded_argument(text: str, mesh: Any) -> Any:
    """Return the argument that a text describes, with its sharding over a mesh.

    After an @ comes for each dimension the axis that it is cut along, `-` for none, and `+` between several:
    `bf16[8192,8192]@data,-`. Dimensions that are left out are whole. Without @ the compiler decides.

    Args:
        text: as `named_argument` takes it, which a sharding may follow.
        mesh: a `jax.sharding.Mesh`; None: there is none.

    Raises:
        NamedFunctionError: it is not an argument.
        SliceError: the sharding names an axis that the mesh does not have, or one twice, or has more dimensions than
            the argument, or cuts one into unequal parts.
    """
    described, at, spec = text.rpartition("@")
    if not at:
        return named_argument(text)
    if mesh is None:
        raise SliceError(f"{shown(text)} is sharded over a mesh, and there is none: give --topology and --mesh")
    import jax

    argument = named_argument(described)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*_parts(text, spec, argument.shape, mesh)))
    if isinstance(argument, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=sharding)
    return PlacedArray(argument, sharding)


def _parts(text: str, spec: str, shape: tuple[int, ...], mesh: Any) -> list[tuple[str, ...] | None]:
    sizes = dict(mesh.shape)
    parts = [() if part.strip() == _WHOLE else tuple(map(str.strip, part.split("+"))) for part in spec.split(",")]
    used = [axis for part in parts for axis in part]
    if unknown := [axis for axis in used if axis not in sizes]:
        raise SliceError(f"{shown(text)}: the mesh has no axis {unknown[0]!r}; it has {', '.join(sizes)}")
    if twice := [axis for axis in used if used.count(axis) > 1]:
        raise SliceError(f"{shown(text)} uses the axis {twice[0]!r} twice")
    if len(parts) > len(shape):
        raise SliceError(f"{shown(text)} is cut along {len(parts)} dimensions, and has {len(shape)}")
    for number, (part, size) in enumerate(zip(parts, shape, strict=False)):
        count = 1
        for axis in part:
            count *= sizes[axis]
        if size % count:
            raise SliceError(f"{shown(text)}: dimension {number} of {size} does not divide among {count} devices")
    return [part or None for part in parts]
