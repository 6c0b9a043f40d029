"""Skip rounds of the top-level program's loops of calls, such as a model's layers, that do the same as those before.

Each time the first program begins another round, the state of the whole simulation is compared with that of a round
before: `state`. If only words of the programs differ, and these by as much as in the round before, two further rounds
are executed with the words of all later rounds at once: `hardware.round_words`. If no decision depends on which round
it is, the state at their ends is the same again, and operands whose contents are known have the same in the calls of
all later rounds, then by induction so are all rounds until the loop ends, or until one in which a decision differs.

Each program then begins that round, with its words, and rounds after it are compared anew. Its clock is not advanced,
since the programs are at different places, and copies are under way between them: times before that round and after it
are in no relation, except by the cycles that are skipped, which each core adds to the times that it records. All
counters grow by as much as in one round, times the rounds that were skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.round_words import ROUNDS, Probe, RoundWords, in_round
from systolic.simulator.hardware.values import MASK, Unknown
from systolic.simulator.rounds.comparison import State, are_next, same_word, words_differ
from systolic.simulator.rounds.counters import grown, snapshot
from systolic.simulator.rounds.state import state_of
from systolic.simulator.schedule import Schedule

_MAX_SINGLE_TRIES = 3  # rounds that are compared with the one before, until pairs of rounds are
_MAX_TRIES = 6  # rounds and pairs that are compared, until they are taken to differ for a while
_MAX_PROBED = 3  # rounds that are executed for all later ones, until they are taken to differ

Registers = tuple[Any, ...]
_Operand = tuple[int, str, int]  # core, operation, index


class RoundCore(Protocol):
    """A core, as far as its rounds go."""

    def skip(self, rounds: int, cycles: int) -> None:
        """Record as many rounds more, each like the latest one."""
        ...

    @property
    def words(self) -> dict[int, Any]:
        """Words of scalar memory, by address."""
        ...

    @property
    def counters(self) -> Sequence[Any]:
        """All that it counts."""
        ...

    @property
    def operand_words(self) -> Callable[[str, int, int], Callable[[], Any] | None]:
        """Known contents of operands, by operation, call and index."""
        ...


@dataclass(slots=True)
class _AtCore:
    """One core's latest round of a loop."""

    rounds: int = 0  # begun, after the first
    registers: Registers = ()
    words: Mapping[int, Any] = field(default_factory=dict)
    counters: Any = None


@dataclass(slots=True)
class _Loop:
    cores: dict[int, _AtCore] = field(default_factory=dict)
    rounds: int = 0  # that a core has begun
    begun: int = 0  # the time at which the first one did
    state: State | None = None  # at that time
    counters: Any = None
    tries: int = 0
    failures: int = 0  # to skip any, since the last time that some were
    first: int = 0  # the round that is compared first: the more failures, the later
    counted_from: int = 0  # a round, from which on every `stride`-th one begins where another may be skipped
    stride: int = 1  # two where rounds alternate, as with two buffers
    probed_from: int | None = None  # a round
    decided: int | None = None  # the round at whose begin others are skipped, or not
    near: bool = False  # not, since one of the next few differs in a decision
    probe: Probe = field(default_factory=Probe)
    continues: list[bool] = field(default_factory=lambda: [True] * ROUNDS)  # whether another one follows, by round
    skipped: int = 0  # rounds, or pairs of two
    cycles: int = 0  # of one


class RepeatedRounds:
    """The loops of all cores that run the same program together."""

    def __init__(self, schedule: Schedule, network: Any = None, repeated: Any = None) -> None:
        self._schedule = schedule
        self._network = network
        self._repeated = repeated
        self._cores: list[RoundCore] = []
        self._pipes: list[HbmPipe] = []
        self._loops: dict[int, _Loop] = {}
        self._probe: Probe | None = None
        # Calls since a round began to which known contents were handed over.
        self._handed_over: dict[_Operand, list[int]] = {}

    def add(self, core: RoundCore, pipe: HbmPipe) -> int:
        """Add a core, which is `pipe`'s device's; return its number."""
        self._cores.append(core)
        if pipe not in self._pipes:
            self._pipes.append(pipe)
        return len(self._cores) - 1

    def handed_over(self, core: int, name: str, operand: int, call: int) -> None:
        """Record that a call of an operation was handed known contents, which later rounds have to hand over too."""
        self._handed_over.setdefault((core, name, operand), []).append(call)

    def goes_on(self, loop: int, jump: Any, *, back: bool) -> Any:
        """Return whether a loop's branch is taken in the present round; `back`: that leads to the next one."""
        at = self._loops.get(loop)
        if type(jump) is not RoundWords:
            return jump
        if at is None or jump.probe is not at.probe:
            return jump.settled()
        at.continues = [continues and taken is back for continues, taken in zip(at.continues, jump.values, strict=True)]
        return jump.values[0]

    def next(self, core: int, loop: int, time: int, registers: Registers) -> Registers:
        """Begin another round of a core's loop; return the program's registers, perhaps of a later round."""
        at = self._loops.setdefault(loop, _Loop())
        if at.decided is not None and all(begun.rounds >= at.decided for begun in at.cores.values()):
            failures = 0 if at.skipped else at.failures + (not at.near)
            at = self._loops[loop] = _Loop(failures=failures, first=2**failures - 1)
        mine = at.cores.setdefault(core, _AtCore())
        mine.rounds += 1
        if mine.rounds < at.first or (mine.rounds - at.counted_from) % at.stride:
            return registers
        if mine.rounds > at.rounds:
            at.rounds = mine.rounds
            self._first(at, time, registers)
        return self._begin(at, mine, self._cores[core], registers)

    # ---- all programs together, when the first one begins a round ----

    def _first(self, at: _Loop, time: int, registers: Registers) -> None:
        begun, at.begun = at.begun, time
        if at.decided is not None:
            return
        before = at.state
        handed_over, self._handed_over = self._handed_over, {}  # since the round before, by every core a round's
        at.state = state_of(self._schedule, self._cores, self._network, self._repeated, time, registers)
        if at.probed_from is None:
            at.tries += before is not None
            if before is not None and words_differ(at.state, before):
                at.probed_from, self._probe = at.rounds, at.probe
            elif at.tries == _MAX_SINGLE_TRIES:
                at.stride, at.counted_from = 2, at.rounds
            elif at.tries > _MAX_TRIES:
                at.decided, at.state = at.rounds, None
            return
        probed = (at.rounds - at.probed_from) // at.stride
        # No rounds are left to skip before such a decision: it passes, and rounds after it are compared anew.
        at.near = at.probe.alike < _MAX_PROBED + 2 and (probed > 1 or not at.probe.failed)
        if probed > 1 and before is not None and not at.near and are_next(at.state, before, at.probe.alike):
            at.cycles = time - begun
            self._skip(at, handed_over)
        if at.skipped or at.near or at.probe.failed or probed > _MAX_PROBED:
            at.decided, at.state, self._probe = at.rounds, None, None
        else:
            at.counters = snapshot([self._network, self._repeated])
        at.continues = [True] * ROUNDS
        for pipe in self._pipes:
            pipe.record(ends=at.decided is not None)

    def _skip(self, at: _Loop, handed_over: Mapping[_Operand, Sequence[int]]) -> None:
        last = (*at.continues[: ROUNDS // 2], False).index(False)
        # What a round before has decided counts from there on.
        rounds = min(last, at.probe.alike - _MAX_PROBED) - 1
        if rounds < 1 or not self._are_handed_over_again(at, handed_over, rounds):
            return
        periods = [period for pipe in self._pipes if (period := pipe.rounds_later(at.cycles, rounds)) is not None]
        if len(periods) < len(self._pipes):
            return
        for pipe, period in zip(self._pipes, periods, strict=True):
            pipe.skip(at.cycles * rounds, period)
        grown([self._network, self._repeated], at.counters, rounds)
        at.skipped = at.probe.skipped = rounds

    def _are_handed_over_again(self, at: _Loop, calls_of: Mapping[_Operand, Sequence[int]], rounds: int) -> bool:
        """True if operands of the calls of later rounds are handed the same contents as those of the latest round."""
        if calls_of and min(core.rounds for core in at.cores.values()) < at.rounds - at.stride:
            return False  # a core may have begun its latest calls more than a round before
        for (core, name, operand), calls in calls_of.items():
            contents = self._cores[core].operand_words
            for call in calls:
                now = contents(name, call, operand)
                for later_call in range(call, call + (rounds + 2) * len(calls), len(calls)):
                    later = contents(name, later_call, operand)
                    if later is not now and (now is None or later is None or not same_word(later(), now())):
                        return False
        return True

    # ---- one program ----

    def _begin(self, at: _Loop, mine: _AtCore, core: RoundCore, registers: Registers) -> Registers:
        if at.probed_from is None:
            mine.registers, mine.words = registers, dict(core.words)
        elif mine.rounds == at.probed_from:
            for address, word in core.words.items():
                core.words[address] = _in_all_rounds(at.probe, word, mine.words.get(address))
            registers = tuple(
                _in_all_rounds(at.probe, word, before) for word, before in zip(registers, mine.registers, strict=True)
            )
        elif mine.rounds == at.decided:
            if at.skipped:
                grown(list(core.counters), mine.counters, at.skipped)
                core.skip(at.skipped, at.cycles)
            for address, word in core.words.items():
                core.words[address] = in_round(at.skipped, word)
            registers = tuple(in_round(at.skipped, word) for word in registers)
        elif at.decided is None or mine.rounds < at.decided:
            mine.counters = snapshot(core.counters)
        return registers


def _in_all_rounds(probe: Probe, now: Any, before: Any) -> Any:
    """Return a word of this round and all later ones, in which it goes on as from the round before."""
    if same_word(now, before):
        return now
    if isinstance(now, Unknown):
        return now
    if not (_is_number(now) and _is_number(before)):
        probe.limit(1)
        return now
    return (now + RoundWords(probe, tuple(range(ROUNDS))) * (now - before)) & MASK


def _is_number(word: Any) -> bool:
    """True of a word that may go on evenly; truth values, also those of all devices, do not."""
    return type(word) is int or (type(word) is Lanes and all(type(value) is int for value in word.values))
