"""A slice: a grid of chips that links connect, and the devices on it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from systolic.chips.chip import Chip
from systolic.chips.links import Links
from systolic.support.call_errors import WrongCallError

_EXTENTS = re.compile(r"[1-9]\d{0,3}(?:x[1-9]\d{0,3})*", re.ASCII)
_HOST_CHIPS = 2  # along each of the first two axes, by libtpu's default
_LIBTPU_AXES = 3


class SliceError(WrongCallError, ValueError):
    """No slice of such a shape, or no such device in it; the message names the possible ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDevice:
    """A device of a slice, as JAX shows it."""

    id: int  # `jax.Device.id`
    chip: int  # its chip's number
    coords: tuple[int, ...]  # the chip's, along each axis of the slice
    core: int  # its index among its chip's devices


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceShape:
    """A slice of chips of one generation."""

    chip: Chip  # the generation
    extents: tuple[int, ...]  # chips along each axis

    def __post_init__(self) -> None:
        dimensions = self.links.dimensions
        if len(self.extents) != dimensions:
            example = "x".join(["2", "4", "4"][:dimensions])
            raise SliceError(
                f"a slice of {self.chip.name} has {dimensions} dimensions, such as {example}; {self.name!r} has "
                f"{len(self.extents)}"
            )
        if math.prod(self.extents) > 1 and any(extent % _HOST_CHIPS for extent in self.extents[:2]):
            raise SliceError(
                f"no slice {self.name} of {self.chip.name}: hosts have {_HOST_CHIPS} x {_HOST_CHIPS} chips, so the "
                "first two extents are even"
            )

    @staticmethod
    def parse(chip: Chip, text: str) -> SliceShape:
        """Read a shape such as "2x4" or "2x2x1".

        Raises:
          SliceError: the text has another form, or other dimensions than slices of this chip have, or the chip has no
            links.
        """
        if not _EXTENTS.fullmatch(text):
            raise SliceError(f"a slice is chips along each axis, such as 2x4 or 2x2x1; {text!r} is not")
        return SliceShape(chip=chip, extents=tuple(map(int, text.split("x"))))

    @property
    def name(self) -> str:
        """The shape as text, for `parse`."""
        return "x".join(map(str, self.extents))

    @property
    def topology(self) -> str:
        """libtpu's name of the slice."""
        return f"{self.chip.topology.partition(':')[0]}:{self.name}"

    @property
    def links(self) -> Links:
        """The chip's links; raises SliceError if none are known."""
        if self.chip.links is None:
            raise SliceError(f"the links between chips of {self.chip.name} are not known: it has no `links`")
        return self.chip.links

    @property
    def wrap(self) -> tuple[bool, ...]:
        """For each axis, whether a link goes from its last chip to its first."""
        return self.links.wrap(self.extents)

    @property
    def libtpu_wrap(self) -> tuple[bool, ...]:
        """Return `wrap` for libtpu, which counts three axes everywhere."""
        return self.wrap + (False,) * (_LIBTPU_AXES - len(self.wrap))

    @property
    def libtpu_host_bounds(self) -> tuple[int, ...] | None:
        """The chips of one host where libtpu's default does not fit: a single chip. None: the default."""
        return (1,) * _LIBTPU_AXES if self.chips == 1 else None

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.extents)

    @property
    def devices_per_chip(self) -> int:
        """Devices on one chip."""
        return self.chip.devices_per_chip

    @property
    def devices(self) -> tuple[SliceDevice, ...]:
        """All devices, by id: cores of a chip first, then chips along the first axis, and so on. Seen in libtpu."""
        return tuple(map(self.device, range(self.chips * self.devices_per_chip)))

    def device(self, number: int) -> SliceDevice:
        cores = self.devices_per_chip
        count = self.chips * cores
        if not 0 <= number < count:
            raise SliceError(f"a slice {self.name} of {self.chip.name} has devices 0 to {count - 1}, no {number}")
        chip, core = divmod(number, cores)
        return SliceDevice(id=number, chip=chip, coords=self.coords(chip), core=core)

    def coords(self, chip: int) -> tuple[int, ...]:
        result = []
        for extent in self.extents:
            result.append(chip % extent)
            chip //= extent
        return tuple(result)

    def chip_at(self, coords: tuple[int, ...]) -> int:
        number = 0
        for extent, at in zip(reversed(self.extents), reversed(coords), strict=True):
            number = number * extent + at
        return number
