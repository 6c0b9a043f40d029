"""Reading large programs: what is left out does not change what is read."""

from __future__ import annotations

import ast
import gc
from contextlib import nullcontext
from typing import Any

import pytest
from simulator_listings import V5E, listing

from systolic.simulator import SimulationError, preparation, prepare_listings
from systolic.simulator.collector import with_rare_collections
from systolic.simulator.opcodes import TENSOR_CORE
from systolic.simulator.reading.blocks import Block
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.translating import detours


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("bundle", ["%s1_s1 = smov 0", "("])
def test_the_collector_rests_while_listings_are_read(
    bundle: str, is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = preparation.parse_listing
    meanwhile: list[bool] = []

    def spied(*args: Any) -> Any:
        meanwhile.append(gc.isenabled())
        return parse(*args)

    monkeypatch.setattr(preparation, "parse_listing", spied)
    try:
        if not is_enabled:
            gc.disable()
        with pytest.raises(SimulationError) if bundle == "(" else nullcontext():
            prepare_listings({"TLP": listing(bundle)}, V5E)
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert meanwhile == [False]


@pytest.mark.parametrize("threshold", [(700, 10, 10), (0, 10, 10), (10**6, 5, 5)])
def test_collections_are_rare_while_a_program_runs(threshold: tuple[int, int, int]) -> None:
    before = meanwhile = gc.get_threshold()
    try:
        gc.set_threshold(*threshold)
        with pytest.raises(SimulationError), with_rare_collections():  # noqa: PT012
            meanwhile = gc.get_threshold()
            raise SimulationError
        assert gc.get_threshold() == threshold
    finally:
        gc.set_threshold(*before)
    assert meanwhile[0] == (0 if threshold[0] == 0 else max(threshold[0], 100_000))


VECTORS = ("%v1_v1 = vadd.f32 %v2_v2, %v3_v3", "%5 = vst [vmem:[%s1_s1] sm:$0xff] /*vst_source=*/%v1_v1")
KEPT = "%v4_v4 = vpop.f32.mrf.mxu0"


@pytest.mark.parametrize("comment", ["/* plain */", "/* a ;; b */", "/* a /* in it */ b */", "/* } */", "/* ; / * */"])
@pytest.mark.parametrize(
    "form",
    [
        "{c} %s1_s1 = smov 4  ;;  V  ;;  K",
        "%s1_s1 = smov 4 {c}  ;;  V  ;;  K",
        "V  ;;  %s1_s1 = smov {c} 4  ;;  V  ;;  K",
        "K  ;;  V {c}  ;;  %s1_s1 = smov 4  ;;",
        "V  ;;  {c} K  ;; {c} V  ;;  %s1_s1 = smov 4",
    ],
)
def test_an_instruction_is_found_whatever_comments_say(form: str, comment: str) -> None:
    code = form.replace("V", "  ;;  ".join(VECTORS)).replace("K", KEPT)
    plain, commented = (
        parse_listing("TLP", f"  0   : > {{ {code.replace('{c}', text)} }} /* Start region 3 */\n").bundles[0]
        for text in ("", comment)
    )
    assert {instruction.opcode for instruction in plain.instructions} == {"smov", "vpop.f32.mrf.mxu0"}
    for instruction, other in zip(plain.instructions, commented.instructions, strict=True):
        assert (instruction.opcode, instruction.dest, instruction.operands) == (
            other.opcode,
            other.dest,
            other.operands,
        )
    assert commented.vector_count == plain.vector_count == code.count(" = v") - code.count("vpop")
    assert commented.region_starts == (3,)
    comments = [instruction.comment for instruction in commented.instructions]
    own = comment[2:-2].strip()
    if " V {c}" in form:  # of a vector instruction, which is not kept
        assert comments == ["", ""]
    else:
        assert comments.count(own) == 1


@pytest.mark.parametrize("loads", [True, False])
def test_every_vector_instruction_of_the_table_is_kept(loads: bool) -> None:
    pushed = "  ;;  %6 = vpush %v9_v9" if loads else ""
    for entry in TENSOR_CORE.entries:
        if not entry.is_vector or entry.kind in ("vector move", "vector load"):
            continue
        opcode = entry.name.replace("*", ".x")
        text = f"  0   : > {{ {VECTORS[0]}  ;;  %v7_v7 = {opcode} %v8_v8{pushed} }}\n"
        opcodes = [instruction.opcode for instruction in parse_listing("TLP", text).instructions]
        assert opcodes == [opcode, "vpush"][: 1 + loads], entry


@pytest.mark.parametrize(("opcode", "places"), [("vpush", ["[vmem:[#allocation1] sm:$0xff]"]), ("vpop.sfrf", [])])
def test_loads_are_kept_if_the_scalar_side_may_see_them(opcode: str, places: list[str]) -> None:
    load = "%v1_v1 = vld [vmem:[#allocation1] sm:$0xff]  ;;  %v2_v2 = vld [vmem:[#allocation2] sm:$0x1]"
    text = f"  0   : > {{ {load}  ;;  %7 = {opcode} %v1_v1 }}\n"
    instructions = [*parse_listing("TLP", text).instructions]
    assert [*instructions[0].operands] == places if places else instructions[0].opcode == opcode
    assert len(instructions) == 1 + len(places)


def blocks(*targets: tuple[int | None, int | None]) -> list[Block]:
    """Return blocks of one bundle, each with its targets: taken, None without a branch, and following."""
    result = []
    for number, (taken, following) in enumerate(targets):
        branch = None if taken is None else number
        result.append(Block(first=number, last=number, branch=branch, taken=taken, following=following, last_cycles=1))
    return result


def detours_of(bodies: list[list[str]], *targets: tuple[int | None, int | None]) -> dict[int, detours.Detour]:
    def compiled(source: str) -> Any:
        ast.parse(source)
        return source

    return detours.with_detours(bodies, blocks(*targets), {"s1", "s2"}, {"copy", "load"}, compiled)


FORK = [detours.BRANCH, "    block = 2", "else:", "    block = 1"]
DIAMOND = ((2, 1), (None, 3), (None, 3), (None, None))  # block 0 branches to 2 or 1; both lead to 3
END = ["return t"]


@pytest.mark.parametrize(
    ("line", "is_harmless"),
    [
        ("s1 = load(s2, 'no word')", True),
        ("s1 = load(s2, 'copy or return from')  # copy, line 7", True),
        ('s1 = load(s2, "it\'s a copy")', True),
        ("yield t", True),
        ("copy(t, s2)", False),
        ("t = yield from load(t)", False),
        ("return t", False),
    ],
)
def test_a_detour_has_no_other_effects(line: str, is_harmless: bool) -> None:
    detour = detours_of([list(FORK), [line], ["s1 = s2"], END], *DIAMOND)
    assert list(detour) == ([0] if is_harmless else [])


def test_code_that_is_in_no_detour_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(detours.ast, "parse", lambda source: parsed.append(source) or parse(source))
    loop = (0, 1)  # block 0 branches back to itself
    assert not detours_of([["s1 = 1", *FORK], END], loop, (None, None))
    assert not parsed
