"""The time of an operation's outermost loop: its first iterations, the steady ones and the last."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from systolic.simulator.hardware.timeline import Timeline
from systolic.support.ranges import Count

_KEPT = 3  # a pipelined grid fills in two iterations, and drains in one


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTime:
    """The longest outermost loop of an operation, over one call. A pipelined grid of N steps goes N + 2 times round.

    `first_cycles` covers the first two rounds together with what comes before the loop, `last_cycles` the last round
    with what comes after it, and `steady_cycles` the rounds between, if the loop has four or more.
    """

    rounds: Count
    first_cycles: Count
    steady_cycles: Count
    last_cycles: Count

    @property
    def steady_round_cycles(self) -> float | None:
        """The cycles of one of the rounds between, on average."""
        between = self.rounds - 3
        return self.steady_cycles / between if between > 0 else None


class LoopTimer:
    """Record when each round of an operation's outermost loops ends.

    Args:
      name: the operation.
      begin: when it begins.
      timeline: notes the rounds; None: they are not noted.
    """

    def __init__(self, name: str, begin: int, timeline: Timeline | None) -> None:
        self._name = name
        self._at = begin
        self._timeline = timeline
        self._loops: dict[int, tuple[list[int], list[int], deque[int]]] = {}  # count, first ones, last ones

    def add(self, loop: int, time: int) -> None:
        """Count a round of the loop that begins with that block."""
        history = self._loops.get(loop)
        if history is None:
            history = self._loops[loop] = ([0], [], deque(maxlen=_KEPT))
        count, first, last = history
        count[0] += 1
        if len(first) < _KEPT:
            first.append(time)
        last.append(time)
        if self._timeline is not None:
            self._timeline.add("round", self._at, time, self._name)
            self._at = time

    def longest(self, begin: int, end: int) -> LoopTime | None:
        """Return the longest loop of an operation from `begin` to `end`; None if nothing went round."""
        best: LoopTime | None = None
        longest = -1
        for count, first, last in self._loops.values():
            if last[-1] - first[0] <= longest:
                continue
            longest = last[-1] - first[0]
            rounds = count[0] + 1  # a round ends with a lap but the last, which falls through
            filled = first[1] if rounds > 3 else last[-1]
            best = LoopTime(
                rounds=rounds,
                first_cycles=filled - begin,
                steady_cycles=last[-1] - filled,
                last_cycles=end - last[-1],
            )
        return best
