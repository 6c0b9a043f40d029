"""The steps of sums that go round a ring of devices, followed without a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from systolic.chips import CHIPS
from systolic.ops.moe.blocks import ExpertsSpec, small_rows
from systolic.ops.moe.matrices import MatrixForm
from systolic.ops.moe.ring.products import ScatterProductsSchedule
from systolic.ops.moe.ring.schedule import MAX_ARRIVALS, WAYS, Field, ScatterSchedule
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


def test_scales_go_with_the_rows_of_a_slab() -> None:
    squares = MatrixForm(dtype="float8_e4m3fn", block=128, scale_columns=128)
    channels = MatrixForm(dtype="int8", block=4096)
    floats = MatrixForm(dtype="bfloat16")
    assert [form.scale_rows(1024) for form in (squares, channels, floats)] == [8, 1, 0]
    assert [form.scale_rows(4096) for form in (squares, channels, floats)] == [32, 1, 0]
    assert [form.bytes(4096, 1536) for form in (squares, channels, floats)] == [
        4096 * 1536 + 32 * 12 * 4,
        4096 * 1536 + 1536 * 4,
        2 * 4096 * 1536,
    ]
    assert [form.pushed("bfloat16") for form in (squares, channels)] == ["float8_e4m3fn", "bfloat16"]
    assert floats.is_multiplied("bfloat16", 1024)
    assert not MatrixForm(dtype="float32").is_multiplied("bfloat16", 1024)
    assert not MatrixForm(dtype="int8", block=896).is_multiplied("bfloat16", 1024)
    buffers = {buffer.name: buffer.ref_shape for buffer in squares.scale_buffers(16, 1536, 1536, 3)}
    assert buffers == {"scales": (3, 16, 12), "column scales": (16, 1536)}


@pytest.mark.parametrize(("rows", "small"), [((64, 64), 64), ((128, 64), 64), ((320, 64), 128)])
def test_two_small_blocks_never_take_the_place_of_a_large_one(rows: tuple[int, int], small: int) -> None:
    assert small_rows(rows) == small


def test_sums_that_do_not_fit_say_why() -> None:
    chip = CHIPS["v6e"]
    assert total_bytes(ScatterSchedule.of(spec_of(8192), 8, chip).buffers) <= buffer_bytes(chip)
    for tokens, devices, rule in ((1024, 8, "multiple of 2048"), (768, 3, "even number"), (2**20, 8, "VMEM")):
        with pytest.raises(IllegalTilesError, match=rule):
            ScatterSchedule.of(spec_of(tokens), devices, chip)


@pytest.mark.parametrize(("devices", "tokens", "columns"), [(8, 4096, 512), (8, 2048, 512), (2, 4096, 1024)])
def test_tiles_of_columns_are_narrow_where_links_have_much_to_carry(devices: int, tokens: int, columns: int) -> None:
    floats = MatrixForm(dtype="bfloat16")
    spec = ExpertsSpec(
        devices=devices,
        tokens=tokens,
        choices=8 * tokens,
        experts=16,
        d=4096,
        f=1536,
        products=2,
        dtype="bfloat16",
        matrices=floats,
        down=floats,
    )
    schedule = ScatterProductsSchedule.of(spec, 8, (320, 64), CHIPS["v6e"])
    assert schedule is not None
    assert (schedule.columns, schedule.tiles) == (columns, 4096 // columns)
    assert schedule.tiles * schedule.scatter.arrivals <= MAX_ARRIVALS
    assert total_bytes(schedule.buffers) <= buffer_bytes(CHIPS["v6e"])


@pytest.mark.parametrize(("devices", "early"), [(2, 1), (4, 1), (8, 2), (16, 4)])
def test_half_of_the_hops_of_the_first_slab_are_before_the_kernel(devices: int, early: int) -> None:
    floats = MatrixForm(dtype="bfloat16")
    sizes = {"tokens": 4096, "choices": 8192, "experts": 4, "d": 1024, "f": 512, "products": 2}
    spec = ExpertsSpec(devices=devices, dtype="bfloat16", matrices=floats, down=floats, **sizes)
    assert spec.early_hops == early
