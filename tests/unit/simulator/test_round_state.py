"""No attribute of a simulation is forgotten where two rounds of a loop are compared."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import systolic.simulator
from systolic.simulator.hardware.sync_flags import Flag
from systolic.simulator.rounds import counters, state
from systolic.simulator.rounds.comparison import State, words_differ
from systolic.simulator.schedule import Running, Schedule
from systolic.simulator.sparse_core.flags import SparseFlags

# Attributes that do not change, only spare work, or are recorded with times that `skipped_cycles` moves.
FIXED = {
    "DmaEngine": "_host_bytes_per_cycle _machine _timelines counts first largest least_latency_cycles schedule waited",
    "HbmPipe": "_busy_times _constant_rate _most_busy_cycles _origin _period _period_cycles _round _slow_cycles "
    "_slow_rate _turn_cost busy_cycles bytes_per_cycle",
    "SyncFlags": "_by_owner _by_program flag",
    "CoreCall": "iterations knows_inputs memory mxus pointers",
    "_Lookup": "_dma _operation _pipe _repeated",
    "Core": "_identity _iterations _memory _op_totals _operands _rounds _setup _timeline memory operand_words "
    "skipped_cycles",
    "CoreParts": "call iterations model named_words next_round number parameter",
    "DeviceParts": "others rounds",
    "SparseFlags": "_first _schedule",
    "BarnaCores": "_dma _granule_bytes _others",
    "Assumption": "_progression",
    "_Buffer": "last",
    "Device": "_around _latency _model _wait_cycles barna_cores chip communications cores dma "
    "first_sparse_core images_at sparse_cores",
    "Network": "_capacity _clock_hz _most_copies _routes _schedule _spans _timelines",
    "PatternNetwork": "_rates _slowest_counts differed",
    "Stream": "count destination flag mask prediction source words",
    "RepeatedCalls": "_machine _spans",
}


def classes() -> Iterator[ast.ClassDef]:
    for file in Path(systolic.simulator.__file__).parent.rglob("*.py"):
        yield from (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef))


def attributes(node: ast.ClassDef) -> set[str]:
    """Names that a class declares, and those that its methods assign to `self`."""
    declared = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return declared | {one.attr for one in stored if isinstance(one.value, ast.Name) and one.value.id == "self"}


def test_every_attribute_is_compared_counted_or_known_to_stay() -> None:
    read, counted = state._READ, counters._COUNTED
    seen = set()
    for node in classes():
        if node.name in read:
            seen.add(node.name)
            known = {*read[node.name], *counted.get(node.name, ()), *FIXED.get(node.name, "").split()}
            assert attributes(node) <= known, (node.name, attributes(node) - known)
    assert seen == set(read)


@pytest.mark.parametrize(("later", "is_same"), [(0.0, True), (0.5, False)])
def test_a_moment_seconds_later_is_the_same_if_times_differ_by_rounding_alone(later: float, is_same: bool) -> None:
    def moment(base: int, event: float) -> State:
        schedule = Schedule()
        flags = SparseFlags(schedule, lambda words: words[0])
        flags.wait(base, 5, 0, equal=False)
        flags.land(5, base + event, 3)
        schedule.at(base + event, act)
        return state.state_of(schedule, [flags], None, None, base, ())

    def act() -> None: ...

    seconds = 9_000_000_000
    assert seconds + 0.048485 - seconds != pytest.approx(0.048485, abs=1e-9)
    assert words_differ(moment(seconds, 0.048485 + later), moment(0, 0.048485)) is (False if is_same else None)


def test_a_program_whose_wait_has_ended_when_it_was_due_does_not_wait() -> None:
    schedule, flag = Schedule(patient=True), Flag()
    states: list[State] = []

    def program() -> Running:
        for base in (0, 7, 14):
            states.append(state.state_of(schedule, [flag], None, None, base, ()))
            schedule.wait_for(flag, base + 7)
            yield None
        return 21

    schedule.start(0, program(), lambda: "it")
    schedule.run()
    assert states[0] == states[1] == states[2]
