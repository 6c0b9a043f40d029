"""The programs and contents that all cores of a device run with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from systolic.chips import Chip
from systolic.simulator.assumptions import ZEROS, Attempt, Progression
from systolic.simulator.hardware.memory import Contents, Words
from systolic.simulator.hardware.segment_memo import SegmentMemo
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.reading.hlo import TopLevelHlo
from systolic.simulator.reading.utilization import BlockUse
from systolic.simulator.repeated_calls import RepeatedCalls
from systolic.simulator.rounds.repeated import RepeatedRounds
from systolic.simulator.schedule import Schedule
from systolic.simulator.sparse_core.program import SparsePrograms
from systolic.simulator.translating.translate import Translation

# Contents of a called operation's operand: (operation, which call of it, operand's index) → contents, or None where
# there is nothing better than what the program's own copies bring.
OperandWords = Callable[[str, int, int], Contents | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSetup:
    """The programs of a device's cores, and their contents."""

    chip: Chip
    translations: Mapping[str, Translation]
    sparse: SparsePrograms
    uses: Mapping[str, BlockUse]
    hlo: TopLevelHlo | None
    parameters: Sequence[Words | Unknown]  # contents, by number
    operand_words: OperandWords
    initial: Callable[[int], int]  # words of scalar memory that the runtime has written
    pointers: Mapping[int, int]  # and those where it has left a pointer to the results, by address
    remember: bool
    max_iterations: int = 0
    assumed: frozenset[str] = frozenset()  # operations in which something counts for computed values that are not known
    progression: Progression = ZEROS  # what does
    skipped: frozenset[str] = frozenset()  # operations that are not executed, as if they took no time
    remembered: SegmentMemo = field(default_factory=SegmentMemo)  # by the matrix units of all cores
    repeated: RepeatedCalls | None = None  # None: every call is executed
    tables: Mapping[int, Words] = field(default_factory=dict)  # contents of HBM next to the parameters, by pointer

    def of_attempt(self, attempt: Attempt) -> DeviceSetup:
        """Return the setup of one attempt to run the program, which looks up the calls of those before."""
        return replace(
            self,
            assumed=attempt.assumed,
            progression=attempt.progression,
            max_iterations=attempt.most_iterations,
            skipped=attempt.skipped,
        )


def rounds_of(setup: DeviceSetup, schedule: Schedule, spans: int, network: object = None) -> RepeatedRounds | None:
    """Return the loops of programs that run together; None if all rounds are executed, as where spans are kept."""
    if not setup.remember or spans:
        return None
    return RepeatedRounds(schedule, network, setup.repeated)
