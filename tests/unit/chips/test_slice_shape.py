"""Slices: which shapes there are, where devices are, and which axes close to a ring."""

import dataclasses

import pytest

from systolic.chips import CHIPS, SliceError, SliceShape, chip
from systolic.chips.v6e import V6E


@pytest.mark.parametrize(
    "known", [each for each in CHIPS.values() if each.links is not None], ids=lambda each: each.name
)
def test_the_ring_topology_is_a_slice(known) -> None:
    shape = SliceShape.parse(known, known.ring_topology.partition(":")[2])
    assert shape.topology == known.ring_topology
    assert len(shape.devices) == known.ring_devices


@pytest.mark.parametrize(
    ("name", "text", "number", "coords", "core"),
    [
        ("v6e", "2x4", 5, (1, 2), 0),
        ("v6e", "16x16", 17, (1, 1), 0),
        ("v5p", "4x4x4", 22, (2, 1, 1), 0),
        ("v7x", "2x2x4", 13, (0, 1, 1), 1),
    ],
)
def test_devices_are_numbered_along_the_first_axis(name, text, number, coords, core) -> None:
    shape = SliceShape.parse(chip(name), text)
    device = shape.device(number)
    assert (device.coords, device.core) == (coords, core)
    assert shape.chip_at(coords) == device.chip
    assert shape.devices[number] == device


@pytest.mark.parametrize(
    ("name", "text", "wrap"),
    [
        ("v5e", "2x4", (False, False)),
        ("v5e", "8x16", (False, True)),
        ("v6e", "16x16", (True, True)),
        ("v5p", "2x2x1", (False, False, False)),
        ("v5p", "2x2x4", (False, False, False)),
        ("v4", "4x4x8", (True, True, True)),
        ("v7x", "4x4x4", (True, True, True)),
    ],
)
def test_which_axes_wrap(name, text, wrap) -> None:
    shape = SliceShape.parse(chip(name), text)
    assert shape.wrap == wrap
    assert shape.libtpu_wrap == (*wrap, False)[:3]


@pytest.mark.parametrize("text", ["", "8", "2x", "2x4x1", "0x4", "-2x4", "3x4", "2x3", "1x8", "two", "2x٤"])
def test_what_is_no_slice(text) -> None:
    with pytest.raises(SliceError):
        SliceShape.parse(V6E, text)


def test_a_single_chip_is_a_slice() -> None:
    shape = SliceShape.parse(V6E, "1x1")
    assert len(shape.devices) == 1
    assert shape.libtpu_host_bounds == (1, 1, 1)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(SliceError, match="0 to 7"):
        SliceShape.parse(V6E, "2x4").device(8)


def test_a_chip_without_links_has_no_slices() -> None:
    with pytest.raises(SliceError, match="links"):
        SliceShape.parse(dataclasses.replace(V6E, links=None), "2x4")
