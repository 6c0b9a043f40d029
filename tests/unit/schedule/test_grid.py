"""The grid schedule against going through all steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from systolic.schedule import GridSchedule
from systolic.schedule.config import GridOrder
from systolic.schedule.grid import Loop

COUNTS = list(itertools.product([1, 2, 3], repeat=3))
ALONG: list[tuple[Loop | None, ...]] = [
    ("m", "k"), ("k", "n"), ("m", "n"), ("m", None), (None, "n"), (None, None), ("m", "k", "batch"),
]  # fmt: skip


@pytest.mark.parametrize("grid_order", ["m", "n"])
@pytest.mark.parametrize("along", ALONG)
def test_a_block_is_fetched_where_its_index_changes(grid_order: GridOrder, along: tuple[Loop | None, ...]) -> None:
    for (m, n, k), batch in itertools.product(COUNTS, [1, 2]):
        schedule = GridSchedule.over(grid_order, m=m, n=n, k=k, batch=batch)
        names = [loop for loop, _ in schedule.loops]
        fetched, before, since = 0, None, []
        for number, step in enumerate(itertools.product(*(range(count) for _, count in schedule.loops))):
            block = [at for name, at in zip(names, step, strict=True) if name in along]
            if block != before:
                fetched, before = fetched + 1, block
                since.append(number)
        assert schedule.fetches(along) == fetched
        assert since == list(range(0, schedule.steps, schedule.reuse_steps(along)))


@pytest.mark.parametrize("grid_order", ["m", "n"])
def test_many_schedules_at_once_are_each_of_them(grid_order: GridOrder) -> None:
    m, n, k = (np.array(side) for side in zip(*COUNTS, strict=True))
    together = GridSchedule.over(grid_order, m=m, n=n, k=k)
    for along in ALONG:
        each = [GridSchedule.over(grid_order, m=m, n=n, k=k).fetches(along) for m, n, k in COUNTS]
        assert np.broadcast_to(together.fetches(along), len(COUNTS)).tolist() == each


@pytest.mark.parametrize("grid_order", ["m", "n"])
def test_every_step_has_its_own_tiles(grid_order: GridOrder) -> None:
    schedule = GridSchedule.over(grid_order, m=3, n=2, k=2)
    found = [schedule.tile_index(step) for step in range(schedule.steps)]
    assert len({(one.i, one.j, one.kk) for one in found}) == 12
    assert [one.kk for one in found] == [0, 1] * 6
    outer = [one.i if grid_order == "m" else one.j for one in found]
    assert outer == sorted(outer)


def test_cores_share_the_first_loop_that_they_share_evenly() -> None:
    assert GridSchedule.over("m", m=3, n=4, k=5).shared_by(2) == (GridSchedule.over("m", m=3, n=2, k=5), 2)
    assert GridSchedule.over("m", m=3, n=5, k=5).shared_by(2) == (GridSchedule.over("m", m=2, n=5, k=5), 2)
    assert GridSchedule.over("m", m=1, n=1, k=5).shared_by(2) == (GridSchedule.over("m", m=1, n=1, k=5), 1)
