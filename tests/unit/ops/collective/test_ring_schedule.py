"""The schedule of products on a ring: sizes that it does not cut evenly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from systolic.ops.collective.schedule import RingSchedule
from systolic.schedule import IllegalTilesError

SCHEDULE = RingSchedule(devices=8, rows=256, columns=1792, dtype="bfloat16", pieces=2, slots_at_once=1, block=896)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pieces": 3}, "pieces=3"),
        ({"slots_at_once": 3}, "slots_at_once=3 of 8 slots"),
        ({"rows": 40}, "rows=40.*multiple of 32"),
        ({"rows": 40, "dtype": "float32", "pieces": 4}, "multiple of 32"),
        ({"block": 512}, "block=512 of 1792 columns"),
        ({"columns": 96, "block": 96}, "block=96"),
    ],
)
def test_uneven_cuts_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(IllegalTilesError, match=message):
        replace(SCHEDULE, **change)


@pytest.mark.parametrize("devices", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("pieces", [2, 4])
def test_every_piece_of_every_device_has_one_place(devices: int, pieces: int) -> None:
    schedule = replace(SCHEDULE, devices=devices, pieces=pieces, slots_at_once=1)
    assert schedule.steps + schedule.own_slots == schedule.slots
    own = {(0, piece) for piece in range(pieces)}
    ways = [
        ((1 - 2 * way) * (step // pieces + 1) % devices, (step + way * schedule.own_slots) % pieces)
        for step in range(schedule.steps)
        for way in range(2)
    ]
    assert len({*own, *ways}) == len(own) + len(ways) == devices * pieces
