"""Values that XLA computes: an assumption where they hardly matter, an error where they decide the time."""

from __future__ import annotations

import pytest
from simulator_listings import V5E, listing

from systolic.simulator import SimulatedRun, UnknownTimeError, UnknownValueError, prepare_listings
from systolic.simulator.sequencer import Progress, Sequencer
from systolic.timing.outcome import Outcome

HLO = "ENTRY %m {\n  %op.1 = s32[4]{0} fusion(%x)\n}\n"
KERNEL = 'ENTRY %m {\n  %op.1 = s32[4]{0} custom-call(%x), custom_call_target="tpu_custom_call"\n}\n'
POPPED = ("%13 = vpush %v1_v1", "%s10_s10 = spop %13", "%14 = vpush %v2_v2", "%s20_s20 = spop %14")
LOOP = (
    "%s11_s11 = smov {start}",
    "LB|%s13_s11 = sphi %s11_s11, %s12_s11  ;;  %s12_s11 = sadd.s32 1, %s13_s11 /* Start region 1 */",
    "%p1_p1 = scmp.lt.s32.totalorder %s12_s11, {end}",
    "%8 = sbr.rel (%p1_p1) target = $region1",
    *[""] * 4,
)
BUSY = [""] * 5000


def simulate(*body: str, hlo: str = HLO, max_iterations: int = 100_000) -> SimulatedRun:
    top = listing("%3 = inlined_call /* %op.1 = f(%x) */", *BUSY)
    prepared = prepare_listings({"TLP": top, "op.1": listing(*body)}, V5E, hlo_text=hlo)
    return prepared.run(V5E, max_iterations=max_iterations)


def looped(start: str, end: str) -> tuple[str, ...]:
    return tuple(line.format(start=start, end=end) for line in LOOP)


def branched(length: int) -> tuple[str, ...]:
    """Passes over `length` bundles unless the first value is below 5."""
    return (
        *POPPED,
        "%p1_p1 = scmp.ge.s32.totalorder %s10_s10, 5",
        "%8 = sbr.rel (%p1_p1) target = $region7",
        *[""] * 4,
        *[""] * length,
        "PF|%s4_s4 = smov 1 /* Start/End empty region 7 */",
    )


def test_what_decides_a_few_cycles_is_an_assumption() -> None:
    run = simulate(*branched(100))
    (assumption,) = run.assumptions
    assert assumption.startswith("op.1: ")
    assert run.cycles == 5000 + 1 + 10 + 100 + 1  # zero: nothing is passed over


@pytest.mark.parametrize(
    "body",
    [
        branched(1000),
        (*POPPED, *looped("0", "%s10_s10")),
        (*POPPED, *looped("%s10_s10", "%s20_s20")),
        (*POPPED, *looped("%s20_s20", "%s10_s10")),  # zero rounds as long as the second value is not the smaller one
    ],
)
def test_what_decides_the_time_makes_it_unknown(body: tuple[str, ...]) -> None:
    with pytest.raises(UnknownTimeError, match=r"op\.1"):
        simulate(*body)


def test_a_loop_without_end_is_no_time() -> None:
    endless = (line.replace("scmp.lt", "scmp.ge") for line in looped("0", "%s10_s10"))
    with pytest.raises(UnknownTimeError):
        simulate(*POPPED, *endless)


def test_in_a_kernel_nothing_is_assumed() -> None:
    with pytest.raises(UnknownValueError) as raised:
        simulate(*branched(100), hlo=KERNEL)
    assert not isinstance(raised.value, UnknownTimeError)
    assert Outcome.failed("x", raised.value).status == "unknown"


def test_kernels_are_left_out_while_it_is_found_out_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    run = Sequencer.run

    def counted(self: Sequencer, time: int) -> Progress:
        executed.append(self._translation.name)
        return run(self, time)

    monkeypatch.setattr(Sequencer, "run", counted)
    top = listing(*(f"%{number} = inlined_call /* %op.{number} = f(%x) */" for number in (2, 1, 3)), *BUSY)
    operation = branched(50)
    programs = {"TLP": top, "op.1": listing(*operation), "op.2": listing(*[""] * 300), "op.3": listing(*operation)}
    kernel = '  %op.2 = s32[4]{0} custom-call(%x), custom_call_target="tpu_custom_call"\n'
    hlo = f"ENTRY %m {{\n{kernel}  %op.1 = s32[4]{{0}} fusion(%x)\n  %op.3 = s32[4]{{0}} fusion(%x)\n}}\n"
    units = {"op.2": "== CAPACITY:\nSALU\n2\n== UTILIZATION:\n" + "1\n" * 300}
    found = prepare_listings(programs, V5E, hlo_text=hlo, utilization=units).run(V5E)
    (core,) = found.cores
    assert next(op for op in core.ops if op.name == "op.2").issued == {"scalar": 300}
    assert {op.name: op.calls for op in core.ops} == {"op.2": 1, "op.1": 1, "op.3": 1}
    assert found.cycles == 5000 + 3 + 300 + 2 * (10 + 50 + 1)
    assert [each.partition(":")[0] for each in found.assumptions] == ["op.1", "op.3"]
    # Before anything was known to be unknown, and at the end.
    assert executed.count("op.2") == 2
