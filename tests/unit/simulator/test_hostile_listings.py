"""Listings that somebody wrote to run code, or for ever: each an error of the simulator's, or a run without harm."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from listing_mutations import check_generated_code, compiled_programs
from simulator_listings import V5E, listing, loop, shown, simulate, simulate_listings

from systolic.chips import chip
from systolic.simulator import SimulationError, prepare_listings
from systolic.simulator.hardware import dma, memory, mxu, sync_flags
from systolic.simulator.translating.literals import number, quoted, variable
from systolic.timing import prepare_program

# `@` is the name of a file, in quotes, that none of them may make.
CODE = (
    "s1=0;open(@,'w').close();s1",
    "s1=open(@,'w')",
    "s1:=open(@,'w')",
    "s1)or(open(@,'w')",
    "open(@,'w')",
    "open(@,chr(119))",
    "__import__('os').mkdir(@)",
    "(open(@,'w'))",
    "[open(@,'w')]",
    "sequencer.__init__.__globals__['__builtins__']['open'](@,'w')",
    "sequencer._translation.run.__globals__",
    "s1\nopen(@,'w')\ns1",
    "s1#\nopen(@,'w')",
    "s1\ropen(@,'w')",
    "s1\x0copen(@,'w')",
    "'+open(@,'w')+'",
    '"+open(@,"w")+"',
    "\\'+open(@,'w')+\\'",
    '"""+str(open(@,"w"))+"""',
    "'),open(@,'w'),('",
    "s1*/open(@,'w')/*",
    "{open(@,'w')}",
    "%s1_s1;open(@,'w')",
    "s1_s1=0;open(@,'w');s1",
    "7 if open(@,'w') else 7",
    "7;open(@,'w')",
    "0x7;open(@,'w')",
    "1.5;open(@,'w')",
    "allocation1]]);open(@,'w');([[",
    "ſ1",
    "s١",
    "import",
    "t",
    "sequencer",
    "start",
    "__class__",
)
# `~` is where it stands: in every field of every instruction that the code is made of.
BUNDLES = (
    "%~ = smov 5",
    "%q_~ = smov 5",
    "%~_s1 = smov 5",
    "%q_~ = spop.drf %9",
    "%~ = sdivrem.u32 %s1_s1, 3 /*kRem*/",
    "%9 = sdivrem.u32 ~, 3 /*kRem*/",
    "%9 = sdivrem.u32 %s1_s1, 3 /*~*/",
    "%s1_s1 = spop.drf %~",
    "%q_~ = vpop.ccrf",
    "%q_~ = vpop.sfrf %9",
    "%~ = vsyncmov [#allocation1]",
    "%~ = vpush.ccrf %s2_s2",
    "%9 = vpush.ccrf ~",
    "%s1_s1 = smov ~",
    "%s1_s1 = smov (%~_p1, 3), 4",
    "%s1_s1 = smov (%p1_~, 3), 4",
    "%s1_s1 = smov (%p1_p1), ~",
    "%s1_s1 = sadd.s32 ~, %s2_s2",
    "%s1_s1 = sadd.s32 (!%p1_~), 4, %s2_s2",
    "%s1_s1 = ~ 1, 2",
    "%s1_s1 = scmp.~.s32.totalorder 1, 2",
    "%s1_s1 = scalar_select %p1_p1, ~, 5",
    "%s1_s1 = scalar_select ~, 4, 5",
    "%s1_s1 = scalar_lea.~ %s2_s2, 4",
    "%s1_s1 = scalar_parameter_address ~",
    "%s1_s1 = int_to_ptr.vmem [resolvable:$true] ~",
    "%s1_s1 = sld [smem:[#~]]",
    "%s1_s1 = sld [smem:[#~_spill]]",
    "%s1_s1 = sld [smem:[#allocation3_spill + $0x~]]",
    "%s1_s1 = sld [smem:[%s2_s2 + ~]] /* ~ */",
    "%7 = sst [smem:[#~_spill]] %s1_s1",
    "%7 = sst [smem:[~]] %s1_s1",
    "%7 = sst [smem:[#allocation3]] ~",
    "%7 = dma.hbm_to_vmem %s91_s91, ~, %s92_s92, [#allocation1]",
    "%7 = dma.hbm_to_vmem %s91_s91, 4, %s92_s92, [#~]",
    "%7 = dma.hbm_to_vmem %s91_s91, 4, %s92_s92, [#allocation1], ~, 1, 1",
    "%7 = dma.hbm_to_smem ~, 4, ~, [#allocation1]",
    "%7 = dma.~_to_vmem %s91_s91, 4, %s92_s92, [#allocation1]",
    "%7 = dma.general %s91_s91, 4, %s92_s92, [#allocation1], ~ /* ~-to-vmem */",
    "%7 = dma.hbm_to_vmem (%p1_~), %s91_s91, 4, %s92_s92, [#allocation1]",
    "%7 = dma.done.wait [#allocation1], ~",
    "%7 = dma.done.wait (%p1_~), [#allocation1], 0 /* ~ */",
    "%7 = vsyncadd [#~], 1",
    "%7 = vsyncadd.remote ~, ~",
    "%7 = vsyncpa [#allocation1], ~",
    "%7 = vwait.ge ~, 1",
    "%7 = vwait.eq [#allocation1], ~",
    "%7 = inlined_call %s1_s1 /* %~ = fusion() */",
    "%7 = inlined_call %s1_~ /* %op = fusion() */",
    "%7 = inlined_call ~ /* %op = fusion() */",
    "%7 = sbr.rel (%p1_~) target = $region1",
    "%7 = sbr.rel (%p1_p1) target = $region~",
    "%s1_s1 = inlined_call_operand.~ [shape: s32[8], index: 0, kind: input]",
    "%q_~ = inlined_call_operand.smem [shape: s32[8], index: 0, kind: input]",
    "%v1_v1 = vmov ~  ;;  %9 = vpush %v1_v1  ;;  %s1_s1 = spop %9",
    "%7 = vmatmul.bf16.gmra.mxu~ %v1_v1",
    "%7 = vmatmul.bf16.gmra.mxu0 (%p1_~), %v1_v1",
    "%v1_v1 = vpop.f32.mrf.mxu~",
    "%s1_s1 = smov 5 } /* Start region ~ */ { ~",
    "~",
)
AFTER = ("%9 = sdivrem.u32 %s2_s2, 3 /* kDivAndRem */", "%s3_s3 = spop.drf %9", "%s4_s4 = sadd.s32 %s1_s1, %s3_s3")


@pytest.mark.parametrize("bundle", BUNDLES)
def test_no_field_of_a_listing_runs_code(bundle: str, tmp_path: Path) -> None:
    called = listing("%s7_s7 = smov 1")
    for at, template in enumerate(CODE):
        file = tmp_path / str(at)
        code = template.replace("@", repr(str(file)))
        text = bundle.replace("~", code)
        top = listing("%s1_s1 = smov 3  ;;  %s2_s2 = smov 7", AFTER[0], text, *AFTER[1:], *shown("%s4_s4"), *[""] * 9)
        with contextlib.suppress(SimulationError):
            prepared = prepare_listings({"TLP": top, "op": called, code: called}, V5E)
            check_generated_code(prepared)
            prepared.run(V5E, max_iterations=100)
        assert list(tmp_path.iterdir()) == [], (bundle, code)


def test_names_of_operations_run_no_code(tmp_path: Path) -> None:
    for at, template in enumerate((*CODE, "a\0b", "\ud800", "\udcff", "<x>", "é")):
        code = template.replace("@", repr(str(tmp_path / str(at))))
        called = {code: listing("%s7_s7 = smov 1", "%8 = dma.done.wait [#allocation1], 1")}
        word = "".join(char for char in code if char not in " \n")
        with contextlib.suppress(SimulationError):
            simulate_listings({"TLP": listing(f"%7 = inlined_call %s1_s0 /* %{word} = op() */"), **called}, V5E)
        assert list(tmp_path.iterdir()) == [], code


def test_what_the_compiler_makes_is_code_of_the_same_kind() -> None:
    for program in compiled_programs():
        check_generated_code(prepare_program(program, chip(program.chip)))


@pytest.mark.parametrize("name", ["", "s", "S1", "s1 ", "s1\n", "s-1", "t", "block", "import", "s1.s2", "m_é", "s١"])
def test_what_is_no_register_is_refused(name: str) -> None:
    with pytest.raises(SimulationError, match="is not a register"):
        variable(name)


def test_words_of_generated_code() -> None:
    assert [variable(name) for name in ("s1", "p20", "m_allocation3_spill_0x1", "_")]
    assert (number(-7), quoted("a'\n\ud800")) == ("-7", '"a\'\\n\\ud800"')
    for wrong in (10**400, True, 1.5):
        with pytest.raises(SimulationError, match="out of range"):
            number(wrong)  # type: ignore[arg-type]


# ---- what would take for ever, or all memory ----


def calls(name: str, *, times: int = 1) -> tuple[str, ...]:
    return (f"%7 = inlined_call %s1_s0 /* %{name} = fusion() */",) * times


def test_loops_of_all_programs_are_counted_together() -> None:
    top = loop(50, *calls("inner"))
    inner = loop(50, "")
    simulate(*top, called={"inner": inner})
    listings = {"TLP": listing(*top), "inner": listing(*inner)}
    with pytest.raises(SimulationError, match="more than 2,000 times"):
        simulate_listings(listings, V5E, max_iterations=2000)


def test_programs_that_call_themselves_or_each_other() -> None:
    with pytest.raises(SimulationError, match="31 programs, each called by the one before"):
        simulate(*calls("a"), called={"a": calls("b"), "b": calls("a")})
    twice = {f"op{depth}": calls(f"op{depth + 1}", times=8) for depth in range(20)}
    listings = {name: listing(*code) for name, code in (("TLP", calls("op0")), *twice.items(), ("op20", ("",)))}
    with pytest.raises(SimulationError, match="more than 10,000 times"):
        simulate_listings(listings, V5E, max_iterations=10_000)


@pytest.mark.parametrize("granules", [2**31, 4294967295])
@pytest.mark.parametrize("ends", ["smem_to_hbm", "smem_to_smem"])
def test_a_copy_of_more_than_scalar_memory(ends: str, granules: int) -> None:
    copy = f"%7 = dma.{ends} [thread:$0]  %s1_s1, %s2_s2, %s1_s1, [#allocation1]"
    with pytest.raises(SimulationError, match="words of scalar memory, where"):
        simulate(f"%s1_s1 = smov 5  ;;  %s2_s2 = smov {granules}", copy)


def test_what_loops_leave_behind_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_SCALAR_WORDS", 100)
    with pytest.raises(SimulationError, match="101 words of scalar memory"):
        simulate(*loop(200, "%7 = sst [smem:[%s2_s1]] 1"), "%s8_s8 = sld [smem:[%s3_s1]]", *shown("%s8_s8"))
    monkeypatch.setattr(mxu, "_MAX_RESULTS", 100)
    with pytest.raises(SimulationError, match="results of matrix unit 0 that no instruction takes"):
        simulate(*loop(200, "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1"))
    monkeypatch.setattr(dma, "_MAX_UNDER_WAY", 100)
    with pytest.raises(SimulationError, match="101 copies under way to one flag"):
        simulate(*loop(200, "%7 = dma.hbm_to_vmem [thread:$0]  %s91_s91, 1, %s92_s92, [#allocation1]"))
    monkeypatch.setattr(dma, "_MAX_SIZES", 50)
    with pytest.raises(SimulationError, match="51 sizes of copies"):
        simulate(*loop(200, "%7 = dma.hbm_to_vmem [thread:$0]  %s91_s91, %s2_s1, %s92_s92, [#allocation1]"))
    monkeypatch.setattr(sync_flags, "_MAX_FLAGS", 50)
    with pytest.raises(SimulationError, match="51 sync flags"):
        simulate(*loop(200, "%7 = vsyncadd %s2_s1, 1"))


def test_a_division_into_a_register_is_no_list_to_multiply() -> None:
    code = ("%s1_s1 = smov 3", "%9_s9 = sdivrem.u32 %s1_s1, 2 /* kDivAndRem */")
    with pytest.raises(SimulationError, match="a division into a register"):
        simulate(*code, "%s2_s2 = smul.u32 %9_s9, 4294967295", *shown("%s2_s2"))


def test_expressions_too_deep_for_python() -> None:
    terms = " + ".join(["%s1_s1"] * 100_000)
    with pytest.raises(SimulationError):
        simulate("%s1_s1 = smov 3", f"%s2_s2 = sld [smem:[{terms}]]", *shown("%s2_s2"))


def test_white_space_takes_no_longer_than_it_is_long() -> None:
    with pytest.raises(SimulationError):  # 100,000,000,000 steps where each blank begins a search to the end
        simulate(f"%s1_s1 = smov {' ' * 500_000}x", *shown("%s1_s1"))
