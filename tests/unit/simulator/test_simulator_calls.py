"""Values on their way through whole programs: arguments, operands, flags; and what a run reports of loops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simulator_listings import V5E, listing, shown, simulate, value

from systolic.simulator import SimulationError, UnknownValueError, prepare_listings
from systolic.simulator.hardware.loop_timer import LoopTimer
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.reading.utilization import parse_utilization
from systolic.simulator.reading.verify import check_registers

HLO = """ENTRY %main (n: s32[1]) -> s32[1] {
  %n.1 = s32[1]{0:T(128)} parameter(0), metadata={op_name="n"}
}
"""
# A loop that starts one copy a round, as often as a word of scalar memory says.
LOOP = (
    "%s10_s10 = sld [smem:[#allocation7]]",
    "%s11_s11 = smov 0",
    "LB|%s13_s11 = sphi %s11_s11, %s12_s11  ;;  %s12_s11 = sadd.s32 1, %s13_s11  ;;  "
    "%9 = dma.hbm_to_vmem %s90_s20, 32, %s91_s21, [#allocation9] "
    "/* Start region 1 */",
    "%p1_p1 = scmp.lt.s32.totalorder %s12_s11, %s10_s10",
    "%8 = sbr.rel (%p1_p1) target = $region1",
    *[""] * 4,
)
TO_SCALAR = (
    "%s1_s1 = scalar_parameter_address 0",
    "%s2_s2 = sshll.u32 %s1_s1, 4  ;;  %s3_s2 = int_to_ptr.hbm [resolvable:$true] %s2_s2",
    "%5 = dma.hbm_to_smem /*hbm=*/%s3_s2, 16, [#allocation7], [#allocation8]",
    "%6 = dma.done.wait [#allocation8], 16",
)


def run(bundles: Sequence[str], parameters: Sequence[Sequence[int]] = ()):
    return prepare_listings({"TLP": listing(*bundles)}, V5E, hlo_text=HLO).run(V5E, parameters=parameters)


@pytest.mark.parametrize("rounds", [1, 2, 17])
def test_an_argument_decides_how_often_a_loop_goes_round(rounds: int) -> None:
    assert run([*TO_SCALAR, *LOOP], [[rounds, *[0] * 127]]).cores[0].copies == rounds + 1


def test_an_argument_of_which_only_the_shape_is_known_is_named() -> None:
    with pytest.raises(UnknownValueError, match="argument n, of which only the shape was given"):
        run([*TO_SCALAR, *LOOP])


def test_a_result_that_is_larger_than_its_place_covers_no_argument() -> None:
    # Padded to lanes it would take 128 times as much as the compiler needs for it.
    shape = "[shape: bf16[32,2048,8192,1], index: 0, kind: output, shape index: {}]"
    call = ("%s22_s22 = smov 65536", "%3 = inlined_call %s22_s22 /* %op.1 = f(%x) */")
    listings = {
        "TLP": listing(*call, *TO_SCALAR, *LOOP),
        "op.1": listing(f"%s7_s22 = inlined_call_operand.hbm {shape}"),
    }
    program = prepare_listings(listings, V5E, hlo_text=HLO)
    assert program.run(V5E, parameters=[[3, *[0] * 127]]).cores[0].copies == 3 + 1


@pytest.mark.parametrize("lanes", ["sm:$0xff", "ss:$0 sm:$0xff"])
@pytest.mark.parametrize("place", ["#allocation5", "%s4_s4", "%s4_s4 + $0x0"])
def test_a_word_reaches_the_scalar_side_through_a_vector_register(place: str, lanes: str) -> None:
    through_vmem = (
        "%s1_s1 = scalar_parameter_address 0",
        "%s2_s2 = sshll.u32 %s1_s1, 4  ;;  %s3_s2 = int_to_ptr.hbm [resolvable:$true] %s2_s2",
        "%s4_s4 = smov [#allocation5]",
        "%s5_s5 = sshll.u32 %s4_s4, 4  ;;  %s6_s5 = int_to_ptr.vmem [resolvable:$true] %s5_s5",
        "%7 = dma.hbm_to_vmem %s3_s2, 16, %s6_s5, [#allocation8]",
        f"%v1_v1 = vld [vmem:[{place}] {lanes}]",
        "%13 = vpush %v1_v1",
        "%s10_s10 = spop %13",
    )
    assert run([*through_vmem, *LOOP[1:]], [[5, *[0] * 127]]).cores[0].copies == 6


def called(body: Sequence[str]):
    top = ("%s1_s0 = smov 6", "%3 = inlined_call %s1_s0 /* %op.1 = f(%x) */")
    return simulate(*top, called={"op.1": tuple(body)})


def test_registers_are_handed_to_a_called_program() -> None:
    operand = "%s7_s0 = inlined_call_operand. [shape: s32[], index: 0, kind: input, shape index: {}]"
    done = called([operand, *(line.replace("%s10_s10", "%s7_s0") for line in LOOP[1:])])
    assert done.cores[0].copies == 6
    (op,) = done.cores[0].ops
    loop = op.loop
    assert loop is not None
    assert loop.rounds == 6
    assert loop.first_cycles + loop.steady_cycles + loop.last_cycles == op.cycles


def test_contents_can_be_given_for_an_operand() -> None:
    operand = "%s7_s0 = inlined_call_operand.smem [shape: s32[4], index: 0, kind: input, shape index: {}]"
    body = (operand, "%s10_s10 = sld [smem:[%s7_s0 + $0x2]]", *LOOP[1:])
    hlo = 'ENTRY %m {\n  %op.1 = s32[4]{0} custom-call(%x), custom_call_target="tpu_custom_call"\n}\n'
    top = listing("%s1_s0 = smov [#allocation3]", "%3 = inlined_call %s1_s0 /* %op.1 = f(%x) */")
    prepared = prepare_listings({"TLP": top, "op.1": listing(*body)}, V5E, hlo_text=hlo)
    asked = []

    def words(name: str, call: int, index: int):
        asked.append((name, call, index))
        return lambda: [1, 2, 3, 4]

    assert prepared.run(V5E, operand_words=words).cores[0].copies == 3
    assert asked == [("op.1", 0, 0)]


def test_contents_that_contradict_the_programs_own_are_an_error() -> None:
    operand = "%s7_s0 = inlined_call_operand.smem [shape: s32[4], index: 0, kind: input, shape index: {}]"
    stored = ("%s2_s2 = smov 9", "%4 = sst [smem:[#allocation3]] %s2_s2", "%s1_s0 = smov [#allocation3]")
    top = listing(*stored, "%3 = inlined_call %s1_s0 /* %op.1 = f(%x) */")
    prepared = prepare_listings({"TLP": top, "op.1": listing(operand, "%s8_s8 = sld [smem:[%s7_s0]]")}, V5E)
    assert prepared.run(V5E, operand_words=lambda *_: lambda: [9, 0, 0, 0]).cycles > 0
    with pytest.raises(SimulationError, match="begins with 5 by the function's own account, with 9"):
        prepared.run(V5E, operand_words=lambda *_: lambda: [5, 0, 0, 0])


@pytest.mark.parametrize(
    ("asked", "pops", "expected"),
    [("kDiv", 1, -3), ("kRem", 1, -1), ("kDivAndRem", 1, -3), ("kDivAndRem", 2, -1)],
)
def test_signed_division(asked: str, pops: int, expected: int) -> None:
    divide = f"%9 = sdivrem.s32 %s1_s1, 2 /* {asked} */"
    taken = ["%s3_s3 = spop.drf %9"] * pops
    found = value("%s1_s1 = smov 4294967289", divide, *taken, "%s4_s4 = ssub.s32 0, %s3_s3", register="%s4_s4")
    assert found == -expected


def test_a_division_of_which_nothing_is_said() -> None:
    with pytest.raises(SimulationError, match="not said what is asked"):
        value("%s1_s1 = smov 7", "%9 = sdivrem.u32 %s1_s1, 2", "%s3_s3 = spop.drf %9", register="%s3_s3")


def test_float_arithmetic_of_the_scalar_side() -> None:
    code = (
        "%s1_s1 = smov 2.5",
        "%s2_s2 = smul.f32 %s1_s1, 3.0",
        "%s3_s3 = sadd.f32 %s2_s2, -1.0",
        "%s4_s4 = sfloor.f32 %s3_s3",
        "%s5_s5 = scvt.f32.s32 %s4_s4",
    )
    assert value(*code, register="%s5_s5") == 6
    compared = (*code, "%p1_p1 = scmp.gt.f32.partialorder %s3_s3, 6.5")
    assert value(*compared, "%s6_s6 = scalar_select %p1_p1, 3, 4", register="%s6_s6") == 4


def test_a_flag_can_be_read() -> None:
    code = (
        "%1 = vsyncpa [#allocation3], 5",
        "%2 = vsyncadd [#allocation3], 4294967294",
        "%3 = vsyncmov [#allocation3]",
    )
    assert value(*code, "%s1_s1 = vpop.sfrf %3", register="%s1_s1") == 3


@pytest.mark.parametrize(("wait", "start", "stalls"), [("eq", 4, False), ("ne", 4, True), ("eq", 0, True)])
def test_waiting_for_a_value(wait: str, start: int, stalls: bool) -> None:
    code = (
        f"%1 = vsyncpa [#allocation3], {start}",
        "%2 = dma.hbm_to_vmem %s90_s20, 4, %s91_s21, [#allocation3]",
        f"%3 = vwait.{wait} [#allocation3], 4",
    )
    assert (simulate(*code).cores[0].semaphore_stall_cycles > 0) == stalls


def test_laps_know_the_longest_loop() -> None:
    timer = LoopTimer("op", 100, None)
    for time in (110, 120):
        timer.add(3, time)
    for time in (200, 300, 400, 500, 600):
        timer.add(8, time)
    loop = timer.longest(100, 650)
    assert loop is not None
    assert (loop.rounds, loop.first_cycles, loop.steady_cycles, loop.last_cycles) == (6, 200, 300, 50)
    assert loop.steady_round_cycles == 100


def test_a_timeline_keeps_the_first_and_the_last() -> None:
    timeline = Timeline(2)
    for at in range(10):
        timeline.add("copy", at, at + 1, "x", at)
    assert [span.amount for span in timeline.spans] == [0, 1, 8, 9]
    assert timeline.left_out == 6


TABLE = """== CAPACTIY:
MXU, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    4     3     4     2     1     3     3     1     1     2
== UTILIZATION:
"""


def test_issued_instructions_are_counts_times_the_table() -> None:
    text = listing("LB|%s1_s1 = smov 0 /* Start region 1 */", "%8 = sbr.rel target = $region1", *[""] * 4, "")
    blocks = split_blocks(parse_listing("x", text), 4)
    rows = [f"{at} 0 0 0 0 1 0 0 0 2" for at in range(7)]
    use = parse_utilization("x", TABLE + "\n".join(rows), blocks)
    assert use.slots == {
        "mxu": 4,
        "xlu": 3,
        "vpu": 4,
        "pop": 2,
        "eup": 1,
        "load": 3,
        "fill": 3,
        "store": 1,
        "spill": 1,
        "scalar": 2,
    }
    total = use.total([3, 1])
    assert (total["mxu"], total["load"], total["scalar"]) == (3 * sum(range(6)) + 6, 3 * 6 + 1, 2 * (3 * 6 + 1))


@pytest.mark.parametrize("text", ["", TABLE, TABLE + "1 2", TABLE.replace("XLU", "FPU") + "0 " * 10])
def test_another_table_is_an_error(text: str) -> None:
    blocks = split_blocks(parse_listing("x", listing("")), 4)
    with pytest.raises(SimulationError, match="table of units"):
        parse_utilization("x", text, blocks)


BEHIND_A_BRANCH = (
    "%s1_s1 = smov 3",
    "%p1_p1 = scmp.lt.s32.totalorder 1, 2",
    "%8 = sbr.rel (%p1_p1) target = $region1  ;;  %s2_s1 = smov (!%p1_p1), 7",
    *[""] * 4,
)


def test_an_operand_that_nobody_reads_is_written_over_in_the_first_bundle() -> None:
    called = (
        "%s1_s3 = smov 40  ;;  %s2_s0 = inlined_call_operand.hbm  ;;  %s4_s3 = inlined_call_operand.hbm",
        *shown("%s1_s3"),
    )
    call = ("%s5_s5 = smov 7", "%9 = inlined_call %s5_s5, %s5_s5 /* %f.1 = custom-call(%a, %b) */")
    assert simulate(*call, called={"f.1": called}).hbm_read_bytes == 40 * V5E.machine.granule_bytes


@pytest.mark.parametrize(("taken", "falls"), [("%s1_s1", "%s2_s1"), ("%s2_s1", "%s1_s1")])
def test_predicated_writes_are_followed_through_branches(taken: str, falls: str) -> None:
    end = "%9 = sbr.rel target = $region9"
    code = [*BEHIND_A_BRANCH, f"%s5_s5 = sadd.s32 1, {falls}", end, *[""] * 4]
    code.append(f"%s6_s6 = sadd.s32 1, {taken} /* Start region 1 */")
    program = parse_listing("x", listing(*code))
    blocks = split_blocks(program, 4)
    if taken == "%s1_s1":  # the write did not happen where the branch is taken
        check_registers(program, blocks)
    else:
        with pytest.raises(SimulationError, match="is read from s1"):
            check_registers(program, blocks)
