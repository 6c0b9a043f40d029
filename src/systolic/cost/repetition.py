"""Loops whose rounds repeat each other, so that the pipeline model can skip most of their rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

_SAME_CYCLES = 0.01  # by which the state of a pipeline may differ and still repeat itself
# Steps that are followed one by one; only a few products that take half a second and more exceed them. After them,
# a loop whose rounds do not repeat is sampled for as many steps again, and goes on as in the later half of these.
# That is exact where a number of rounds that divides this half repeats itself; of 288 random configurations, sampled
# from the 512th step on, the times of two others were off by 0.7e-3 and 1.4e-3.
MAX_FOLLOWED_STEPS = 2**13
_SAMPLED_STEPS = 480


class Mark(NamedTuple):
    """A possible beginning of a repetition of the pipeline."""

    step: int
    state: list[float]
    time: float
    copied: float
    followed: int  # steps, without those that were left out


@dataclass(slots=True, kw_only=True, eq=False)
class RepeatedLoop:
    """A loop whose rounds may repeat each other."""

    length: int  # steps of a round
    # A round that begins like the one before is a repetition of it; False: rounds are only sampled.
    compares: bool = True
    marks: list[Mark] = field(default_factory=list)  # beginnings of rounds

    def repeated(self, mark: Mark) -> Mark | None:
        """Return the mark since which all that was done will be done again; None if that is not known yet."""
        last_mark = self.marks[-1] if self.marks else None
        self.marks.append(mark)
        if last_mark is None or (self.compares and _same(mark.state, last_mark.state)):
            return last_mark
        first = self.marks[0]
        if mark.followed < MAX_FOLLOWED_STEPS or mark.followed - first.followed < _SAMPLED_STEPS:
            return None
        return self.marks[(len(self.marks) - 1) // 2]


def _same(state: list[float], other: list[float]) -> bool:
    return len(state) == len(other) and all(
        abs(now - earlier) <= _SAME_CYCLES for now, earlier in zip(state, other, strict=True)
    )
