"""Rings of neighbors through the devices of a mesh axis."""

from __future__ import annotations

import pytest

from systolic.chips import chip
from systolic.ops.collective.rings import Place, places, ring_through

# Chips of v6e 2x4 in the order in which `jax.make_mesh` puts them on an axis of 8.
MESH_ORDER = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 3), (0, 3), (1, 2), (0, 2)]


def on_links_of(name: str, coords: list[tuple[int, ...]]) -> list[Place]:
    links = chip(name).links
    assert links is not None
    return places(coords, links.wrap)


def is_ring(ring: tuple[int, ...], group: list[Place]) -> bool:
    following = (*ring[1:], ring[0])
    return sorted(ring) == list(range(len(group))) and all(
        group[here].is_next_to(group[there]) for here, there in zip(ring, following, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "coords"),
    [
        ("v6e", MESH_ORDER),
        ("v5e", [(x, y) for x in range(4) for y in range(4)]),
        ("v5e", [(0, y) for y in range(16)]),  # which wraps
        ("v7x", [(x, y, 0) for x in range(2) for y in range(2) for _ in range(2)]),  # two devices a chip
        ("v6e", [(0, 0), (0, 1)]),
    ],
)
def test_neighbors_are_one_hop_apart(name: str, coords: list[tuple[int, ...]]) -> None:
    group = on_links_of(name, coords)
    assert is_ring(ring_through([group]), group)


def test_one_order_suits_all_groups() -> None:
    # data=2, model=4: squares of chips with the diagonal in the middle, the second one turned.
    all_places = on_links_of("v6e", MESH_ORDER)
    groups = [all_places[:4], all_places[4:]]
    ring = ring_through(groups)
    assert all(is_ring(ring, group) for group in groups)


@pytest.mark.parametrize("coords", [[(0, y) for y in range(4)], [(x, y) for x in range(3) for y in range(3)]])
def test_without_a_ring_it_is_the_order_of_the_axis(coords: list[tuple[int, ...]]) -> None:
    assert ring_through([on_links_of("v6e", coords)]) == tuple(range(len(coords)))


def test_only_a_whole_box_wraps() -> None:
    row = [(0, y) for y in range(16)]
    assert on_links_of("v5e", row)[0].is_next_to(Place(coords=(0, 15), wraps=(0, 16)))
    assert on_links_of("v5e", [*row[:-2], (1, 14), (1, 15)])[0].wraps == (0, 0)
