"""Copies, matrix units, cores and the top-level program, on listings small enough to count by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simulator_listings import V5E, listing, loop, simulate, simulate_listings

from systolic.chips import chip
from systolic.simulator import DeadlockError, SimulatedRun, SimulationError
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.reading.verify import check_registers

BYTES_PER_CYCLE = V5E.machine.hbm_bytes_per_s / V5E.machine.clock_hz
LATENCY = V5E.machine.dma_latency_cycles
MATMUL = "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1"
POP = "%v2_v2 = vpop.f32.mrf.mxu0"


# ---- copies ----


def fetch(granules: int, flag: str, opcode: str = "hbm_to_vmem") -> str:
    return f"%7 = dma.{opcode} [thread:$0]  %s91_s91, {granules}, %s92_s92, [#allocation{flag}]"


def wait(granules: int, flag: str) -> str:
    return f"%8 = dma.done.wait [#allocation{flag}], {granules}"


def test_a_copy_lands_after_its_bytes_and_a_latency() -> None:
    granules = 1000
    run = simulate(fetch(granules, "1"), wait(granules, "1"))
    landed = -(-granules * 32 // BYTES_PER_CYCLE) + LATENCY
    assert run.cycles == pytest.approx(landed + 1, abs=1)
    assert run.cores[0].copy_stall_cycles == pytest.approx(landed - 1, abs=1)
    assert (run.hbm_read_bytes, run.hbm_written_bytes, run.cores[0].copies) == (32000, 0, 1)


def test_reads_and_writes_share_one_pipe_in_order() -> None:
    alone = simulate(fetch(1000, "1"), wait(1000, "1")).cycles
    second = simulate(fetch(1000, "2", "vmem_to_hbm"), fetch(1000, "1"), wait(1000, "1"))
    assert second.cycles == pytest.approx(alone + 1000 * 32 / BYTES_PER_CYCLE, abs=2)
    assert (second.hbm_read_bytes, second.hbm_written_bytes) == (32000, 32000)


def test_a_wait_for_what_has_landed_costs_nothing() -> None:
    run = simulate(fetch(10, "1"), *[""] * 2000, wait(10, "1"))
    assert run.cycles == 2002
    assert run.cores[0].copy_stall_cycles == 0


def test_flags_count() -> None:
    code = (fetch(10, "1"), fetch(20, "1"), wait(30, "1"), "%9 = vsyncadd [#allocation1], 4294967276", wait(10, "1"))
    simulate(*code)
    with pytest.raises(DeadlockError, match=r"TLP, line 9: .*dma\.done\.wait.*, 11"):
        simulate(*code, wait(11, "1"))
    simulate(*code, "%9 = vsyncpa [#allocation1], 11", wait(11, "1"))


@pytest.mark.parametrize(("relation", "count", "other"), [("lt", 3, 4), ("ne", 5, 4), ("eq", 4, 5)])
def test_a_wait_for_a_value(relation: str, count: int, other: int) -> None:
    def waiting(counted: int) -> SimulatedRun:
        return simulate(f"%9 = vsyncpa [#allocation1], {counted}", f"%8 = vwait.{relation} [#allocation1], 4")

    assert waiting(count).cycles == 2
    with pytest.raises(DeadlockError):
        waiting(other)


def test_copies_on_the_chip_do_not_use_the_pipe() -> None:
    run = simulate(fetch(10**6, "1", "vmem_to_vmem"), wait(10**6, "1"))
    assert run.hbm_read_bytes == run.hbm_written_bytes == 0
    assert run.cycles == LATENCY + 1


def test_the_direction_of_a_general_copy_follows_from_its_addresses() -> None:
    def general(source: str, destination: str) -> tuple[int, int]:
        run = simulate(
            f"%s1_s1 = scalar_lea.{source} [#allocation8], 4  ;;  %s2_s2 = scalar_lea.{destination} [#allocation9], 0",
            "%s3_s3 = sshll.u32 %s1_s1, 4  ;;  %s4_s4 = sshll.u32 %s2_s2, 4",
            "%7 = dma.general %s3_s3, 10, %s4_s4, [#allocation1], 131072, [#allocation5], 0, 0",
        )
        return run.hbm_read_bytes, run.hbm_written_bytes

    assert general("hbm", "vmem") == (320, 0)
    assert general("vmem", "hbm") == (0, 320)


def general_copy(words: Sequence[int], direction: str = "hbm-to-vmem") -> int | None:
    """Bytes in one piece of a copy whose strides are these words in scalar memory."""
    run = simulate(
        "%s3_s3 = smov 0",
        *(
            line
            for at, word in enumerate(words)
            for line in (f"%s9{at}_s4 = smov {word}", f"%{at} = sst [smem:[#allocation5 + ${at:#x}]] %s9{at}_s4")
        ),
        f"%7 = dma.general %s3_s3, 10, %s3_s3, [#allocation1], 131072, [#allocation5], 0, 0 /* {direction} */",
    )
    return run.cores[0].copy_sizes[0].run_bytes


# [2048, 512] bfloat16 as a whole, and 2048 of the 32768 columns of [512, 32768]: in HBM eight rows lie together, in
# VMEM sixteen. Both descriptors as the compiler writes them for v6e.
WHOLE = (512, 512, 4, 64, 128, 2, 256, 64, 4)
COLUMNS = (32768, 2048, 16, 64, 128, 2, 16384, 64, 4)


def test_the_pieces_of_a_general_copy_are_those_that_lie_together_in_hbm() -> None:
    assert general_copy(WHOLE) == 0
    assert general_copy(COLUMNS) == 8 * 2048 * 2
    turned = [COLUMNS[at] for at in (1, 0, 2, 4, 3, 5, 7, 6, 8)]
    assert general_copy(turned, "vmem-to-hbm") == 8 * 2048 * 2
    assert general_copy(COLUMNS[:6]) is None


# ---- matrix units ----


def test_work_on_different_units_goes_on_at_once() -> None:
    both = "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1  ;;  %8 = vmatmul.bf16.gmra.mxu1 %v1_v1"
    run = simulate(both, "", "")
    assert (run.cycles, run.cores[0].matrix_busy_cycles, run.cores[0].matrix_stall_cycles) == (3, 32, 0)


def test_a_unit_that_is_behind_by_a_queue_stalls_the_core() -> None:
    depth = V5E.machine.matmul_queue_depth
    assert simulate(*[MATMUL] * depth).cores[0].matrix_stall_cycles == 0
    run = simulate(*[MATMUL] * 100)
    assert run.cores[0].matrix_busy_cycles == 1600
    assert run.cycles == pytest.approx(1600, abs=16 * (depth + 1))


def test_a_result_is_there_a_latency_after_its_work_began() -> None:
    latency = V5E.machine.result_latency_cycles
    assert simulate(MATMUL, POP).cycles == latency + 1
    assert simulate(MATMUL, *[""] * latency, POP).cores[0].matrix_stall_cycles == 0


@pytest.mark.parametrize(
    ("name", "opcode", "cycles", "pops"),
    [
        ("v5e", "bf16.gmra", 16, 2),
        ("v5e", "f32.gmra", 8, 1),
        ("v5e", "s8.gmra", 16, 4),
        ("v5e", "s4.gmra", 16, 4),  # of 64 rows and half as many columns
        ("v6e", "mubr.s4.gmra", 8, 8),
        ("v6e", "mubr.bf16.gmra", 8, 4),
        ("v6e", "mubr.s8.gmra", 8, 8),
        ("v6e", "mubr.f32.gmra", 4, 2),
    ],
)
def test_what_a_matmul_costs_and_gives(name: str, opcode: str, cycles: int, pops: int) -> None:
    matmul = f"%7 = vmatmul.{opcode}.mxu0 %v1_v1"
    run = simulate(matmul, *[POP] * pops, chip_name=name)
    assert run.cores[0].matrix_busy_cycles == cycles
    with pytest.raises(SimulationError, match="has none"):
        simulate(matmul, *[POP] * (pops + 1), chip_name=name)


def test_results_with_addresses() -> None:
    latency = chip("v7x").machine.result_latency_cycles
    matmul = "%7 = vmatmul.mubr.bf16.gmra.mrb[4].mxu1 %v1_v1"
    assert simulate(matmul, "%v2_v2 = vpop.f32.mrb[7].mxu1", chip_name="v7x").cycles == latency + 1
    assert simulate(matmul, "%v2_v2 = vpop.f32.mrb[8].mxu1", chip_name="v7x").cycles == 2


def test_a_matmul_whose_predicate_does_not_hold_is_none() -> None:
    code = ("%p1_p1 = scmp.eq.s32.totalorder 1, 2", "%7 = vmatmul.bf16.gmra.mxu0 (%p1_p1), %v1_v1", "")
    assert simulate(*code).cores[0].matrix_busy_cycles == 0
    assert simulate(code[0], code[1].replace("(%p1", "(!%p1"), "").cores[0].matrix_busy_cycles == 16


def test_an_operand_type_without_a_rate() -> None:
    with pytest.raises(SimulationError, match=r"TLP, line 4: .*no rate.*u4"):
        simulate("%7 = vmatmul.u4.gmra.mxu0 %v1_v1")


def test_looking_rounds_up_changes_nothing() -> None:
    body = (
        MATMUL,
        MATMUL,
        fetch(100, "1"),
        MATMUL,
        POP,
        POP,
        wait(100, "1"),
        "%9 = vsyncadd [#allocation1], 4294967196",
    )
    listings = {"TLP": listing(*loop(50, *body, *[POP] * 4))}
    assert simulate_listings(listings, V5E, remember=True) == simulate_listings(listings, V5E, remember=False)


# ---- two cores ----


# ---- the top-level program ----


def test_a_prefetch_is_apart() -> None:
    run = simulate(
        "%s1_s1 = sld [smem:[#allocation2]]",
        "%p1_p1 = scmp.ne.s32.totalorder %s1_s1, 1",
        "%9 = sbr.rel (%p1_p1) target = $region4",  # not to run at all
        *["", "", "", ""],
        "%s2_s2 = sld [smem:[#allocation10]]",
        "%p2_p2 = scmp.ne.s32.totalorder %s2_s2, 0",
        "%s3_s3 = scalar_select %p2_p2, 0, 1000  ;;  %s4_s4 = scalar_select %p2_p2, 1000, 0",
        "%5 = vsyncadd [#allocation9], %s4_s4",
        "%7 = dma.hbm_to_vmem %s91_s91, %s3_s3, %s92_s92, [#allocation9]",
        wait(1000, "9"),
        "PF| /* Start/End empty region 4 */",
    )
    assert run.prefetch_cycles > LATENCY
    assert run.hbm_read_bytes == 0
    assert run.cycles == pytest.approx(14, abs=LATENCY)
    assert run.time_us == pytest.approx(run.cycles / 1500)


# ---- listings that are not whole ----


def test_a_listing_that_is_not_whole() -> None:
    text = listing("%s1_s1 = smov 1", "%s2_s2 = smov 2 /* a comment */", "")
    lines = text.splitlines()
    cases = {
        "\n".join([*lines[:3], *lines[4:]]): "cut or doubled",
        "\n".join([*lines[:4], *lines[3:]]): "cut or doubled",
        text.replace("*/", ""): "comment does not end",
        text.replace("/*", ""): "ends that has not begun",
        text.replace("}", ""): "not a bundle",
        text.replace("{ ", "{ ??? "): "no instruction",
        "": "no bundles",
        "hello": "not a bundle",
    }
    for broken, said in cases.items():
        with pytest.raises(SimulationError, match=said):
            simulate_listings({"TLP": broken}, V5E)


def test_comments_nest_and_run_over_lines() -> None:
    text = listing("%s1_s1 = smov 1 /* BoundsCheck for %4 = dma /*hbm=*/%s2\nhlo: copy\n */", "")
    assert len(parse_listing("x", text).bundles) == 2


def test_a_register_that_cannot_hold_the_value() -> None:
    with pytest.raises(SimulationError, match=r"TLP, line 5: s9 is read from s1, which holds s1 here"):
        simulate("%s1_s1 = smov 1", "%s2_s2 = sadd.s32 1, %s9_s1")


def test_a_delay_slot_too_many_is_found_by_the_registers() -> None:
    body = ("%s6_s6 = sadd.s32 1, %s5_s5",)
    code = ("%s5_s5 = smov 0", *loop(3, *body, slots=3), "%s7_s5 = smov 1", "%s8_s8 = sadd.s32 1, %s7_s5")
    program = parse_listing("x", listing(*code))
    check_registers(program, split_blocks(program, 3))
    with pytest.raises(SimulationError, match="s5 is read from s5, which holds s5 or s7 here"):
        check_registers(program, split_blocks(program, 4))


# ---- cross-lane units ----


def test_a_cross_lane_unit_that_is_behind_stalls_the_core_and_counts_as_no_matrix_stall() -> None:
    move, machine = "%7 = vxpose.xlu0.b32.cont %v1_v1", chip("v6e").machine
    run = simulate(*[move] * 100, chip_name="v6e")
    assert run.cycles == pytest.approx(100 * machine.lane_move_cycles, abs=4 * machine.lane_move_cycles + 4)
    assert run.cores[0].matrix_stall_cycles == run.cores[0].matrix_busy_cycles == 0
    both = f"{move}  ;;  {move.replace('xlu0', 'xlu1')}"
    assert simulate(*[both] * 100, chip_name="v6e").cycles == run.cycles
    assert simulate(*[f"{move}", "", "", ""] * 25, chip_name="v6e").cycles == 100


def test_a_core_with_stalls_on_cross_lane_units_reports_them_in_its_regions() -> None:
    moves = ["%7 = vbcast.lane.b32.xlu1 %v1_v1, 0"] * 40
    run = simulate("%8 = inlined_call /* %fusion.1 = f(%x) */", chip_name="v6e", called={"fusion.1": (*moves, "")})
    (op,) = run.cores[0].ops
    assert op.cycles > 41
    assert sum(region.cycles for region in op.regions) == op.cycles
    assert op.matrix_stall_cycles == 0


def test_a_move_across_lanes_under_a_predicate_asks_for_no_value() -> None:
    code = "%7 = vxpose.xlu0.b32.cont (%p1_p1), %v1_v1"
    assert simulate("%p1_p1 = scmp.eq.s32.totalorder %s9_s9, 2", *[code] * 9, chip_name="v6e").cycles == 10
