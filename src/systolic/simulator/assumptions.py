"""Assume values that XLA's own operations compute for themselves and that the simulator does not have.

They clamp and mask by indices that they compute, which no caller can give and which mostly decide a few cycles. So
such an operation runs with zeros in their place, and for comparison with numbers that rise and that fall from one value
to the next. Where the whole program then takes the same time, it is the program's time. Where it does not, or a loop
goes round more often, the time is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from systolic.simulator.core_records import CoreRun, SparseCoreRun
from systolic.simulator.errors import SimulationError, UnknownTimeError

_SAME_TIME = 0.03  # the share of the program's time by which the assumed values may change it
_SAME_ITERATIONS = 100  # by which they may change how often loops go round: a loop of a thousand rounds is seen
_MORE_ITERATIONS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """The first unknown value of a call, and the step to each further one."""

    first: int
    step: int


ZEROS = Progression(first=0, step=0)
_OTHERS = (Progression(first=1000, step=1000), Progression(first=1_000_000, step=-1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a program."""

    assumed: frozenset[str]  # operations in which values are assumed for unknown ones
    progression: Progression = ZEROS  # the assumed values
    most_iterations: int  # of all loops together
    skipped: frozenset[str] = frozenset()  # operations that are not executed, as if they took no time


class Assumption:
    """The values that are assumed during one call of an operation."""

    def __init__(self, progression: Progression) -> None:
        self._progression = progression
        self._known: dict[Hashable, int] = {}

    def value(self, place: Hashable | None) -> int:
        """Return an assumed value: the same one for the same place; None is a new place each time."""
        key = ("new", len(self._known)) if place is None else place
        number = self._progression.first + self._progression.step * len(self._known)
        return self._known.setdefault(key, number & 0xFFFFFFFF)


class ProgramRun(Protocol):
    """The run of a program on all cores."""

    @property
    def cores(self) -> Sequence[CoreRun]: ...

    @property
    def iterations(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """The run of a device's cores, and the iterations of loops on the busiest."""

    cores: Sequence[CoreRun]
    iterations: int
    sparse_cores: tuple[SparseCoreRun, ...]
    prefetch_cycles: int = 0  # that the first call takes longer


def end_cycles(run: ProgramRun) -> int:
    """Return the cycles of the core that ends last."""
    return max(core.cycles for core in run.cores)


def check_time(
    run: ProgramRun,
    cycles: int,
    assumed: Mapping[str, str],
    run_with: Callable[[Progression, int], ProgramRun],
) -> None:
    """Check that a program takes the same time whatever values are assumed in it.

    Args:
      run: with zeros, perhaps of a part of the program.
      cycles: of the whole program with zeros.
      assumed: unknown values by operation.
      run_with: runs it with other values and a limit of iterations.

    Raises:
      UnknownTimeError: it takes another time, or does not end.
    """
    for progression in _OTHERS:
        try:
            other = run_with(progression, 2 * run.iterations + _MORE_ITERATIONS)
        except SimulationError as error:
            raise never_ends(assumed) from error
        change = end_cycles(other) - end_cycles(run)
        changed = abs(change) > _SAME_TIME * cycles
        if changed or abs(other.iterations - run.iterations) > _SAME_ITERATIONS:
            name = max(assumed, key=lambda name: abs(_cycles(other, name) - _cycles(run, name)))
            raise UnknownTimeError(
                f"how long {name} takes depends on {assumed[name]}: the program takes {cycles:,} cycles with zeros "
                f"there, {cycles + change:,} with other values"
            )


def never_ends(assumed: Mapping[str, str]) -> UnknownTimeError:
    """Return the error that a program cannot be executed with assumed values."""
    named = "; ".join(f"{name}: {why}" for name, why in assumed.items())
    return UnknownTimeError(f"how long the program takes depends on values that are not known: {named}")


def _cycles(run: ProgramRun, name: str) -> int:
    return sum(op.cycles for core in run.cores for op in core.ops if op.name == name)
