"""Forms of listings that only whole programs have, on listings small enough to count by hand."""

from __future__ import annotations

import pytest
from simulator_listings import V5E, listing, simulate, value

from systolic.simulator import SimulationError, prepare_listings
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.reading.utilization import parse_utilization


@pytest.mark.parametrize("taken", [0, 1])
def test_a_predicate_that_two_paths_have_written(taken: int) -> None:
    code = (
        f"%p9_p9 = scmp.eq.s32.totalorder 1, {taken}  ;;  %p1_p4 = scmp.eq.s32.totalorder 1, 1",
        "%9 = sbr.rel (%p9_p9) target = $region7",
        *[""] * 3,
        "/* End region 6 */",
        "%p2_p4 = scmp.eq.s32.totalorder 1, 0",
        "PF|%p3_p4 = pphi %p1_p4, %p2_p4 /* Start/End empty region 7 */",
        "%s1_s1 = scalar_select %p3_p4, 5, 9",
    )
    assert value(*code, register="%s1_s1") == (5 if taken else 9)


COPYING = (
    "%s7_s0 = inlined_call_operand.<no memory space> [shape: s32[], index: 0, kind: input, shape index: {}]",
    "%9 = dma.hbm_to_vmem %s90_s20, %s7_s0, %s91_s21, [#allocation9]",
)


@pytest.mark.parametrize("opcode", ["call", "inlined_call"])
def test_a_program_is_called_with_arguments_by_either_name(opcode: str) -> None:
    top = ("%s2499_s0 = smov 6", f"%58 = {opcode} %s2499_s0 /* %op.1 = f(%x) */", *[""] * 4)
    run = simulate(*top, called={"op.1": COPYING})
    assert [op.name for op in run.cores[0].ops] == ["op.1"]
    assert run.hbm_read_bytes == 6 * 32


@pytest.mark.parametrize("slot", ["%s3_s0 = smov 7", "%8 = dma.done.wait [#allocation9], 1"])
def test_what_acts_in_the_shadow_of_a_call_is_not_guessed(slot: str) -> None:
    top = ("%s2499_s0 = smov 6", "%58 = call %s2499_s0 /* %op.1 = f(%x) */", "", slot, "", "")
    with pytest.raises(SimulationError, match="shadow of a call"):
        simulate(*top, called={"op.1": COPYING})


def test_the_mark_of_a_calls_end_comes_after_its_shadow() -> None:
    top = ("%s2499_s0 = smov 6", "%58 = call %s2499_s0 /* %op.1 = f(%x) */", "")
    top += ("%59 = vtrace 2415919104", "%s3_s0 = smov 7", "", "")
    run = simulate(*top, called={"op.1": COPYING})
    assert run.hbm_read_bytes == 6 * 32


@pytest.mark.parametrize("taken", [0, 1])
def test_a_flag_that_is_named_only_where_it_is_selected(taken: int) -> None:
    fetch = "dma.hbm_to_vmem %s91_s91, 10, %s92_s92,"
    run = simulate(
        f"%p1_p1 = scmp.eq.s32.totalorder 1, {taken}",
        "%s36_s4 = scalar_select /*predicate=*/%p1_p1, /*on_true=*/[#allocation2], /*on_false=*/[#allocation1]",
        f"%5 = {fetch} %s36_s4  ;;  %6 = vsyncpa [#allocation3], 0",
        "%7 = dma.done.wait %s36_s4, 10",
        # The other one is known to be a flag, and this one stands beside it.
        "%s37_s5 = scalar_select %p1_p1, [#allocation3], [#allocation4]",
        f"%8 = {fetch} %s37_s5",
        "%9 = dma.done.wait %s37_s5, 10",
    )
    assert run.cores[0].copies == 2


def test_a_top_level_program_has_room_for_the_flags_of_a_training_step() -> None:
    fetches = (f"%5 = dma.hbm_to_vmem %s91_s91, 10, %s92_s92, [#allocation{n}]" for n in range(200))
    waits = (f"%7 = dma.done.wait [#allocation{n}], 10" for n in range(200))
    assert simulate(*fetches, *waits).cores[0].copies == 200


def test_a_predicate_between_a_pointer_and_its_annotation() -> None:
    pointer = "%s13_s22 = int_to_ptr.sparse_core_sequencer_sflag [resolvable:$false] (!%p1_p1), 7163"
    assert value("%p1_p1 = scmp.eq.s32.totalorder 1, 0", pointer, register="%s13_s22") == 7163


def test_what_libtpu_0_0_52_writes() -> None:
    code = (
        "%s1_s1 = smov.u32 5  ;;  %3 = vsyncset.done [#allocation2], 0",
        "%p1_p1 = scmp.eq.s32.totalorder 1, 1",
        "%s2_s1 = smov.u32 (%p1_p1, %s1_s1), 7",
    )
    assert value(*code, register="%s2_s1") == 7


def test_the_table_of_units_of_libtpu_0_0_52() -> None:
    blocks = split_blocks(parse_listing("x", listing("%s1_s1 = smov.u32 5", "")), 4)
    table = "== CAPACITY:\nMATMUL, MATPUSH, SALU\n4 4 2\n== UTILIZATION:\n1 2 1\n0 1 0\n"
    assert parse_utilization("x", table, blocks).total([3]) == {"mxu": 3, "push": 9, "scalar": 3}


def test_a_stride_that_a_move_of_either_name_has_set() -> None:
    for move in ("smov", "smov.u32"):
        strides = f"%s1_s1 = {move} 128  ;;  %s2_s2 = {move} 64  ;;  %s3_s3 = {move} 4"
        fetch = "%7 = dma.hbm_to_vmem %s91_s91, 128, %s92_s92, [#allocation1], %s1_s1, %s2_s2, %s3_s3"
        (size,) = simulate(strides, fetch).cores[0].copy_sizes
        assert size.run_bytes == 4 * 512


HEADER = "HloModule jit_f, input_output_alias={{ {0}: ({1}, {{}}, may-alias) }}, entry_computation_layout={{}}"
PARAMETERS = "ENTRY %m {\n  %a.1 = f32[8] parameter(0)\n  %b.1 = f32[8] parameter(1)\n"


@pytest.mark.parametrize("taken", [0, 1])
def test_a_result_that_takes_the_memory_of_a_parameter_is_found_there(taken: int) -> None:
    """The program asks whether its second result lies where its second parameter does, by the runtime's table."""
    code = (
        "%s10_s21 = sld [smem:[#allocation4]]  ;;  %s11_s21 = int_to_ptr.hbm [resolvable:$false] %s10_s21",
        "%s13_s22 = sshll.u32 %s11_s21, 4  ;;  %s14_s22 = int_to_ptr.hbm [resolvable:$true] %s13_s22",
        "%16 = dma.hbm_to_smem %s14_s22, 16, [#allocation6], [#allocation5]",
        "%17 = dma.done.wait [#allocation5], 16",
        "%s23_s3 = sld [smem:[#allocation6 + $0x1]]  ;;  %s24_s4 = scalar_parameter_address 1",
        "%p1_p1 = scmp.eq.s32.totalorder %s23_s3, %s24_s4",
        "%s1_s1 = scalar_select %p1_p1, 7, 3",
        "%90 = dma.hbm_to_vmem %s91_s91, %s1_s1, %s92_s92, [#allocation90]",
    )
    header = HEADER.format("{1}" if taken else "{0}", 1)
    hlo = f"{header}\n\n{PARAMETERS}  ROOT %t = (f32[8]{{0:T(128)}}, f32[8]{{0}}) tuple(%a.1, %b.1)\n}}\n"
    run = prepare_listings({"TLP": listing(*code)}, V5E, hlo_text=hlo).run(V5E)
    assert run.hbm_read_bytes == (16 + (7 if taken else 3)) * 32
