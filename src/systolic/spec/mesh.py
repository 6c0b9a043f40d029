"""The slice that a product is cut over, and the mesh over its devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceMesh:
    """A slice, and a mesh over all its devices."""

    topology: str  # chips along each axis of the slice, such as "2x4"
    axes: tuple[MeshAxis, ...]  # of the mesh, in the order in which `slice_mesh` takes them

    @classmethod
    def of(cls, topology: str, **axes: int) -> SliceMesh:
        """Return the mesh with these axes: `SliceMesh.of("2x4", data=2, model=4)`."""
        return cls(topology=topology, axes=tuple(MeshAxis(name=name, size=size) for name, size in axes.items()))

    @property
    def sizes(self) -> dict[str, int]:
        """Devices along each axis."""
        return {axis.name: axis.size for axis in self.axes}

    def __str__(self) -> str:
        return ",".join(f"{axis.name}={axis.size}" for axis in self.axes)
