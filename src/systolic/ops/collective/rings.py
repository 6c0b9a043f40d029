"""Rings of devices in which neighbors are one hop apart.

The kernels choose their own ring, because the order of a mesh axis by `jax.make_mesh` is often not a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# Partial rings tried before the search gives up. On a grid the first ones lead to a ring; on 16 chips in a line without
# a wrapping link all of them take 16 steps.
_MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a device: its chip's coordinates, and the extent of each axis that closes to a ring, else 0."""

    coords: tuple[int, ...]
    wraps: tuple[int, ...]

    def is_next_to(self, other: Place) -> bool:
        """True if a link connects the devices' chips, or if both are on one chip."""
        hops = 0
        for coordinate, other_coordinate, extent in zip(self.coords, other.coords, self.wraps, strict=True):
            distance = abs(coordinate - other_coordinate)
            hops += min(distance, extent - distance) if extent else distance
        return hops <= 1


def ring_through(groups: Sequence[Sequence[Place]]) -> tuple[int, ...]:
    """Return an order of the axis indices in which all neighbors are one hop apart, in every group.

    It is the order of the axis if that is a ring, or if there is none. Else it is a Hamiltonian cycle, found by
    depth-first search that tries devices with the fewest free neighbors first (Warnsdorff's rule).

    Args:
      groups: the places of the devices along the axis, for each position along the mesh's other axes.
    """
    count = len(groups[0])
    near = [
        {
            other
            for other in range(count)
            if other != index and all(group[index].is_next_to(group[other]) for group in groups)
        }
        for index in range(count)
    ]
    order = tuple(range(count))
    if all((index + 1) % count in near[index] for index in order):
        return order
    return next(_cycles(near), order)


def _cycles(near: Sequence[set[int]]) -> Iterator[tuple[int, ...]]:
    path, steps = [0], 0

    def free_neighbors(index: int) -> list[int]:
        free = near[index] - set(path)
        return sorted(free, key=lambda other: len(near[other] - set(path)))

    choices: list[Iterator[int]] = [iter(free_neighbors(0))]
    while choices and steps < _MAX_STEPS:
        steps += 1
        if len(path) == len(near) and 0 in near[path[-1]]:
            yield tuple(path)
        following = next(choices[-1], None)
        if following is None:
            choices.pop()
            path.pop()
        else:
            path.append(following)
            choices.append(iter(free_neighbors(following)))


Wraps = Callable[[tuple[int, ...]], tuple[bool, ...]]  # of a slice's extents: whether each axis closes to a ring


def places(coords: Sequence[tuple[int, ...]], wraps: Wraps) -> list[Place]:
    """Return the places of all devices of a mesh. Only axes of a mesh that fills a whole box can close to a ring.

    Args:
      coords: chip coordinates of the devices.
      wraps: as `Links.wrap`.
    """
    lows, highs = ([edge(axis) for axis in zip(*coords, strict=True)] for edge in (min, max))
    extents = tuple(high - low + 1 for low, high in zip(lows, highs, strict=True))
    size = 1
    for extent in extents:
        size *= extent
    is_box = size == len(set(coords))
    closed = wraps(extents) if is_box else (False,) * len(extents)
    wrapped = tuple(extent if is_closed else 0 for extent, is_closed in zip(extents, closed, strict=True))
    return [Place(coords=place, wraps=wrapped) for place in coords]
