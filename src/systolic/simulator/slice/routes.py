"""The way of a copy from device to device: along the first axis to the target's place on it, then the next axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from systolic.chips import SliceShape

_AXES = "xyz"
DIE = "die"


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One direction of a link between neighbours; see `LinkRun` for the meaning of its fields.

    `Routes` makes each link once, so links are compared by identity.
    """

    source: int
    target: int
    axis: str


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The links that a copy takes, in their order, and the latency of its first byte. Each is made once, too."""

    links: tuple[Link, ...]
    latency_s: float
    axes: frozenset[str] = field(init=False)  # of its links

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", frozenset(link.axis for link in self.links))


class Routes:
    """Routes between all devices of a slice."""

    def __init__(self, shape: SliceShape) -> None:
        self._shape = shape
        self._links = shape.links
        self._wrap = shape.wrap
        self._known: dict[tuple[int, int, str], Link] = {}
        self.devices = len(shape.devices)
        self.between = cache(self._between)
        hops_s = [self._links.hop_s, *([self._links.die_hop_s or 0.0] if shape.devices_per_chip > 1 else [])]
        self.least_latency_s = min(hops_s)  # between two devices

    def _between(self, source: int, target: int) -> Route:
        shape, constants = self._shape, self._links
        here, target_device = shape.device(source), shape.device(target)
        if source == target:
            return Route((), 0.0)
        if here.chip == target_device.chip:
            return Route((self._link(source, target, DIE),), constants.die_hop_s or 0.0)
        links = []
        coords = list(here.coords)
        for axis, extent in enumerate(shape.extents):
            step = self._step(axis, target_device.coords[axis] - coords[axis])
            while coords[axis] != target_device.coords[axis]:
                begin = shape.chip_at(tuple(coords))
                coords[axis] = (coords[axis] + step) % extent
                end = shape.chip_at(tuple(coords))
                links.append(self._link(begin, end, f"{_AXES[axis]}{'+' if step > 0 else '-'}"))
        return Route(tuple(links), len(links) * constants.hop_s)

    def _link(self, source: int, target: int, axis: str) -> Link:
        key = (source, target, axis)
        return self._known.setdefault(key, Link(*key))

    def _step(self, axis: int, distance: int) -> int:
        """Return the direction of the shorter way; forwards if both are equally long."""
        extent = self._shape.extents[axis]
        if self._wrap[axis] and 2 * abs(distance) > extent:
            distance = -distance
        elif self._wrap[axis] and 2 * abs(distance) == extent:
            distance = abs(distance)
        return 1 if distance > 0 else -1

    def bytes_per_s(self, link: Link) -> float:
        return (self._links.die_bytes_per_s if link.axis == DIE else None) or self._links.bytes_per_s
