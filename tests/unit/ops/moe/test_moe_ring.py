"""The steps of sums that go round a ring of devices, followed without a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from systolic.chips import CHIPS
from systolic.ops.moe.ring.schedule import WAYS, Field, ScatterSchedule
from systolic.ops.moe.schedule import CombineSpec
from systolic.schedule import IllegalTilesError
from systolic.schedule.buffers import total_bytes
from systolic.schedule.vmem import buffer_bytes


def spec_of(tokens: int) -> CombineSpec:
    return CombineSpec.of(tokens=tokens, top_k=8, experts=16, d=512, dtype="bfloat16", dtype_out="bfloat16")


@pytest.mark.parametrize(("devices", "pieces"), [(2, 2), (4, 4), (8, 2), (6, 6)])
def test_each_device_adds_once_to_every_sum_before_it_arrives(devices: int, pieces: int) -> None:
    schedule = ScatterSchedule.of(spec_of(devices * pieces * 128), devices, CHIPS["v6e"])
    assert schedule.pieces == pieces
    ring = tuple(np.random.default_rng(0).permutation(devices).tolist())
    table = schedule.table(ring)
    arrived: dict[tuple[int, int], tuple[int, list[int]]] = {}  # by place of the ring: a piece and who has added to it
    sent, finished = np.zeros((devices, WAYS), int), {}
    for step in range(table.shape[1]):  # all devices take a step at once, so that what is read has been sent before
        moves = {}
        for place, device in enumerate(ring):
            fields = table[place, step]
            block, added = int(fields[Field.BLOCK]), [device]
            for source in fields[Field.ARRIVED : Field.ARRIVED + WAYS]:
                if source < schedule.arrivals:
                    piece, devices_before = arrived.pop((place, int(source)))
                    assert piece == block
                    added += devices_before
            if fields[Field.SENT] < 0:
                assert block == device * pieces + fields[Field.OWN]
                finished[block] = sorted(added)
                continue
            way = int(fields[Field.WAY])
            sent[place, way] += 1
            moves[(place + 1 - 2 * way) % devices, int(fields[Field.SENT])] = block, added
        assert not moves.keys() & arrived.keys()
        arrived |= moves
    assert not arrived
    assert finished == {block: list(range(devices)) for block in range(devices * pieces)}
    assert (sent == (devices - 1) * pieces // 2).all()


def test_sums_that_do_not_fit_say_why() -> None:
    chip = CHIPS["v6e"]
    assert total_bytes(ScatterSchedule.of(spec_of(8192), 8, chip).buffers) <= buffer_bytes(chip)
    for tokens, devices, rule in ((1024, 8, "multiple of 2048"), (768, 3, "even number"), (2**20, 8, "VMEM")):
        with pytest.raises(IllegalTilesError, match=rule):
            ScatterSchedule.of(spec_of(tokens), devices, chip)
