"""SparseCores run: launches in order, streams that share HBM, barriers, and the signal that ends it."""

import random
from collections.abc import Sequence

import pytest
from listing_mutations import check_source, mutated
from simulator_listings import simulate
from sparse_devices import DONE, START, Device, a_chip
from sparse_listings import GATHER, RESIDENT, gather

from systolic.chips import Chip
from systolic.simulator import DeadlockError, SimulationError
from systolic.simulator.errors import reading
from systolic.simulator.sparse_core.listing import parse_sparse_listing

ROWS_BYTES = 128 * 128 * 4  # of a tile
TILES = 16


def time_of(on: Chip) -> int:
    device = Device(on)
    device.launch(0)
    return device.end()


def test_a_gather_takes_its_streams_and_latencies() -> None:
    slow, fast = time_of(a_chip(stream_bytes_per_s=1e9)), time_of(a_chip(stream_bytes_per_s=2e9))
    # A list of 512 bytes, rows in, rows out, one after the other.
    assert slow - fast == pytest.approx((512 + 2 * ROWS_BYTES) / 2, abs=2)
    # Descriptor, program, loader, the tiles' code, list, rows, rows.
    assert time_of(a_chip(latency=200)) - time_of(a_chip(latency=100)) == pytest.approx(7 * 100, abs=2)


def test_tiles_whose_code_comes_with_the_program_are_not_sent_any() -> None:
    """Such a program is 8 granules longer than its listing says."""
    listing = parse_sparse_listing("resident", RESIDENT)
    assert listing.granules == len(listing.scs.bundles) + 2 * len(listing.tec.bundles) + 8
    ends = []
    for latency in (100, 200):
        device = Device(a_chip(latency=latency), RESIDENT)
        device.launch(0)
        ends.append(device.end())
    # Descriptor, program, list, rows, rows.
    assert ends[1] - ends[0] == pytest.approx(5 * 100, abs=2)


def test_indices_count_where_they_take_longer_than_the_bytes() -> None:
    bytes_alone = time_of(a_chip(index=0.0))
    assert time_of(a_chip(index=ROWS_BYTES / 128)) == bytes_alone
    assert time_of(a_chip(index=2 * ROWS_BYTES / 128)) - bytes_alone == pytest.approx(ROWS_BYTES, abs=2)


def test_all_tiles_share_hbm() -> None:
    one_gb_per_s = time_of(a_chip(stream_bytes_per_s=1e15, hbm=1e9))
    least = 2 * TILES * ROWS_BYTES + TILES * 512
    assert least <= one_gb_per_s <= least + 10_000


def test_what_it_did_is_counted() -> None:
    device = Device(a_chip())
    device.launch(0)
    device.launch(1)
    device.end()
    for run in device.cores.results():
        assert run.hbm_written_bytes == TILES * ROWS_BYTES
        assert run.hbm_read_bytes == TILES * (512 + ROWS_BYTES) + 64 * len_of_code()
        assert (run.streams, run.indices) == (3 * TILES, TILES * 128)
        assert [op.name for op in run.ops] == ["gather"]
        assert {span.kind for span in run.spans} == {"op", "copy", "stall"}


def len_of_code() -> int:
    return len(parse_sparse_listing("gather", GATHER).tec.bundles)


def test_a_second_launch_waits_for_the_first() -> None:
    device = Device(a_chip())
    device.launch(0)
    device.launch(0)
    device.schedule.run()
    (first, second), none = (run.ops for run in device.cores.results())
    assert second.begin_cycles >= first.end_cycles
    assert none == ()


def test_it_begins_when_the_tensor_core_says() -> None:
    early, late = Device(a_chip()), Device(a_chip())
    early.launch(0, go=50_000)
    late.launch(0, go=60_000)
    assert late.end() - early.end() == 10_000


def test_who_never_starts_it_is_named() -> None:
    device = Device(a_chip())
    device.launch(0, go=None)
    with pytest.raises(DeadlockError, match=r"gather, line \d+: _ = swait.ge \[sflag:\$0x1B8D\]"):
        device.schedule.run()


def run_tiles(code: Sequence[str]) -> None:
    device = Device(a_chip(), gather([*code, "_ = shalt"]))
    device.launch(0)
    device.schedule.run()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (["s1 = spop.v2s; p0 = sne.s32 s0, s0", "p0 = sne.s32 s1, $0x0", "s2 = sadd.s32 @p0 $0x1, s2",
          ".LBB2_1:", "(pc) = sbr.rel @p0 .LBB2_1-.Ltmp0, $1", "_ = snop"], "control flow depends on"),
        (["[tilespmem:s0], [sflag:$0x5] = stream.indirect_vreg.gather [hbm:s0], $0x80, v0, vm3, $0x38"], "lanes"),
        ([".LBB2_1:", "(pc) = sbr.rel .LBB2_1-.Ltmp0, $1", "_ = snop"], "loops went round"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_said(code: list[str], why: str) -> None:
    with pytest.raises(SimulationError, match=why):
        run_tiles(code)


def test_lanes_of_a_mask_whose_bits_are_printed_count() -> None:
    stream = "[tilespmem:s0], [sflag:$0x5] = stream.indirect_vreg.gather [hbm:s0], $0x80, v0, {mask}, $0x38"
    code = ["s0 = simm.s32 $0x0; vm0 = vmmov $0xff", "vm1 = vcmask $0x3F20", stream.format(mask="vm0")]
    code += [stream.format(mask="vm1"), "_ = swait.eq [sflag:$0x5], $0x800"]
    # It ends, but for the sequencer, which nobody tells.
    with pytest.raises(DeadlockError, match=r"\[sflag:\$0x1\], \$0x1"):
        run_tiles(code)


def test_lanes_below_a_scalar_count() -> None:
    code = ["s0 = simm.s32 $0x3; v6 = vlaneseq.u32", "v5 = vmov s0", "vm0 = vgt.u32 v5, v6"]
    code += ["[tilespmem:s0], [sflag:$0x5] = stream.indirect_vreg.gather [hbm:s0], $0x80, v0, vm0, $0x38"]
    # It ends, but for the sequencer, which nobody tells.
    with pytest.raises(DeadlockError, match=r"^gather, line \d+: _ = swait.ge \[sflag:\$0x1\], \$0x1 waits[^;]*$"):
        run_tiles([*code, "_ = swait.eq [sflag:$0x5], $0x180"])
    with pytest.raises(DeadlockError, match=r"\[sflag:\$0x5\], \$0x200"):
        run_tiles([*code, "_ = swait.ge [sflag:$0x5], $0x200"])


@pytest.mark.parametrize(("rows", "words"), [(3, 0x180), (8, 0x400), (11, 0x580), (16, 0x800)])
def test_lanes_of_two_masks_count_where_both_have_them(rows: int, words: int) -> None:
    """A gather of the last rows goes in halves of the lanes."""
    code = [f"s0 = simm.s32 ${rows:#x}; v6 = vlaneseq.u32", "v5 = vmov s0; vm1 = vmmov $0xff; vm2 = vcmask $0x3F20"]
    code += ["vm0 = vgt.u32 v5, v6", "vm3 = vmand vm0, vm1", "vm4 = vmand vm0, vm2"]
    for mask in ("vm3", "vm4"):
        code += [f"[tilespmem:s0], [sflag:$0x5] = stream.indirect_vreg.gather [hbm:s0], $0x80, v0, {mask}, $0x38"]
    # It ends, but for the sequencer, which nobody tells.
    with pytest.raises(DeadlockError, match=r"^gather, line \d+: _ = swait.ge \[sflag:\$0x1\], \$0x1 waits[^;]*$"):
        run_tiles([*code, f"_ = swait.eq [sflag:$0x5], ${words:#x}"])
    with pytest.raises(DeadlockError, match=r"\[sflag:\$0x5\]"):
        run_tiles([*code, f"_ = swait.ge [sflag:$0x5], ${words + 1:#x}"])


def test_a_halt_with_a_condition_ends_the_task() -> None:
    code = ["s0 = simm.s32 $0x1", "p0 = seq.s32 s0, $0x1", "_ = shalt @p0", "_ = swait.ge [sflag:$0x9], $0x1"]
    with pytest.raises(DeadlockError) as caught:
        run_tiles(code)
    assert "sflag:$0x9" not in str(caught.value)


# Tile 0 reads word 0x10 of the sequencer until it is 2, and then tells it to end.
POLLING = [
    "s0 = stileid.u32; s3 = rddreg [dreg:$0x0]",
    "s1 = simm.s32 $0x100010; p0 = sne.s32 s0, $0x0",
    "_ = shalt @p0",
    ".LBB2_1:",
    "[smem:s1], [sflag:$0x0] = smem.add.s32 $0x0",
    "s2 = ssyncread [sflag:$0x0]",
    "p1 = slt.s32 s2, $0x2",
    ".Ltmp1:",
    "(pc) = sbr.rel @p1 .LBB2_1-.Ltmp1, $1",
    "_ = snop",
    "s3 = simm.s32 $0x100001",
    "[sflag:s3] = ssyncadd.tile.s32 $0x1; _ = shalt",
]


@pytest.mark.parametrize("cycles", [100, 100_000])
def test_a_tile_polls_a_word_of_the_sequencer(cycles: int) -> None:
    ends = []
    for delay in (cycles, 2 * cycles):
        stores = ["s11 = simm.s32 $0x0; s12 = simm.s32 $0x2", "[smem:$0x10] = sst s11"]
        stores += [f"_ = sdelay {delay:#x}", "_ = swait.ge [sflag:$0x2], $0x0", "[smem:$0x10] = sst s12"]
        device = Device(a_chip(), gather(POLLING, meanwhile=stores))
        device.launch(0)
        ends.append(device.end())
    # It goes on at most a round of the loop after the store.
    assert ends[1] - ends[0] == pytest.approx(cycles, abs=8)


# The sequencer signals a flag of tile 0 by the bare number, as libtpu 0.0.50's all-reduces do.
SIGNALLED = [
    "s0 = stileid.u32; s3 = simm.s32 $0x100001",
    "p0 = sne.s32 s0, $0x0",
    "_ = shalt @p0",
    "_ = swait.ge [sflag:$0x9], $0x1",
    "[sflag:s3] = ssyncadd.tile.s32 $0x1; _ = shalt",
]


@pytest.mark.parametrize("cycles", [100, 100_000])
def test_the_sequencer_signals_a_tile(cycles: int) -> None:
    ends = []
    for delay in (cycles, 2 * cycles):
        signals = [f"_ = sdelay {delay:#x}; s11 = simm.s32 $0x9", "[sflag:s11] = ssyncadd.tile.s32 $0x1"]
        device = Device(a_chip(), gather(SIGNALLED, meanwhile=signals))
        device.launch(0)
        ends.append(device.end())
        assert device.dma.count(0, "TLP", ends[-1], DONE) == 1  # the TensorCore is told only of the end
    assert ends[1] - ends[0] == pytest.approx(cycles, abs=8)


def test_a_signal_to_another_tile_is_refused() -> None:
    signals = ["s11 = simm.s32 $0x41", "[sflag:s11] = ssyncadd.tile.s32 $0x1"]
    device = Device(a_chip(), gather(SIGNALLED, meanwhile=signals))
    device.launch(0)
    with pytest.raises(SimulationError, match="which tile is signalled by address 0x41"):
        device.schedule.run()


def test_a_copy_within_the_device_signals_both_flags() -> None:
    copy = "[spmem:s11], [sflag:s12] = dma.general [hbm:s11], [sflag:s13], length:$0x800, [dreg:$0x0], "
    copy += "stride_count:$0x1, ici_dest:s14, dma_misc:DstOpCode:WRITE"
    ends = []
    for first_bit in (0, 1 << 16):  # with it, flags count copies
        granules = "$0x1" if first_bit else "$0x800"
        code = [f"s11 = simm.s32 $0x0; s12 = simm.s32 {4 << 13 | 0x20:#x}", f"s13 = simm.s32 {first_bit | 0x21:#x}"]
        code += ["s14 = simm.s32 $0x80044000", copy]
        code += [f"_ = swait.eq [sflag:$0x{flag}], {granules}" for flag in (20, 21)]
        code = [text.replace("simm.s32 0x", "simm.s32 $0x").replace("simm.s32 3", "simm.s32 $3") for text in code]
        device = Device(a_chip(hbm=1e9), gather(meanwhile=code))
        device.launch(0)
        ends.append(device.end())
        assert device.cores.results()[0].hbm_read_bytes >= 0x800 * 32
    assert ends[0] == ends[1]


def test_a_damaged_listing_is_refused_or_runs_and_never_more() -> None:
    ended = 0
    for seed in range(200):
        text = mutated(GATHER, random.Random(seed))
        try:
            with reading("the listing"):
                device = Device(a_chip(), text)
            for function in (device.program.scs, device.program.tec):
                if function is not None:
                    check_source(function.source)
            device.launch(0)
            device.schedule.run()
            ended += 1
        except SimulationError:
            continue
    assert 0 < ended < 200


def test_a_kernel_that_copies_128_words_to_hbm_launches_nothing() -> None:
    # As XLA's `ragged_dot` does with offsets of groups, before a signal to a program that runs already.
    writes = (
        "%s2_s2 = smov 0  ;;  %s3_s3 = int_to_ptr.hbm [resolvable:$true] %s2_s2  ;;  %s6_s6 = smov [#allocation3]",
        "%13 = dma.smem_to_hbm %s6_s6, 16, %s3_s3, [#allocation8]",
        "%4342 = dma.done.wait [#allocation8], 16 /* local-dma-wait */",
    )
    signals = (f"%s1_s1 = smov {START}", "%14 = vsyncadd.remote %s1_s1, 1")
    call = "%7 = inlined_call %s1_s0 /* %op = custom-call() */"
    run = simulate(call, *signals, chip_name="v7x", called={"op": writes})
    assert run.sparse_cores == ()
    with pytest.raises(SimulationError, match="is to run program 1 of 1 granules"):
        simulate(*writes, *signals, chip_name="v7x")
