"""Assume values that XLA's own operations compute and that the simulator does not have.

Such operations clamp and mask by indices that they compute. No caller can give these, and mostly they decide a few
cycles. So the operation runs with zeros in their place and, for comparison, with rising and with falling numbers. If
the whole program takes the same time with all of them, this is its time. If not, or if a loop runs more often, the time
is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from systolic.simulator.core_records import CoreRun, SparseCoreRun
from systolic.simulator.errors import SimulationError, UnknownTimeError

_SAME_TIME = 0.03  # the assumed values may change the program's time by this share
_SAME_ITERATIONS = 100  # and the iterations of loops by this number: a loop of a thousand rounds is noticed
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

    assumed: frozenset[str]  # operations in which unknown values are assumed
    progression: Progression = ZEROS  # the assumed values
    most_iterations: int  # limit of all loops together
    skipped: frozenset[str] = frozenset()  # operations that are not executed, as if they took no time


class Assumption:
    """The values that are assumed during one call of an operation."""

    def __init__(self, progression: Progression) -> None:
        self._progression = progression
        self._known: dict[Hashable, int] = {}

    def value(self, place: Hashable | None) -> int:
        """Return an assumed value, the same for the same place; None is a new place each time."""
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
    prefetch_cycles: int = 0  # that the first call takes in addition


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
      run: the run with zeros, perhaps of a part of the program.
      cycles: cycles of the whole program with zeros.
      assumed: unknown values by operation.
      run_with: runs the program with other values and a limit of iterations.

    Raises:
      UnknownTimeError: the time differs, or the program does not end.
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
