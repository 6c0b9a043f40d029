"""Records of a program that ran as if on a TPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from systolic.running.memory import HeldArrays, size_text
from systolic.steps import StepRun, whole_run
from systolic.support.status import Status
from systolic.support.summary import Summarised, Summary

_WAITS = {
    "copy": "waits for copies",
    "overhead": "starting copies",
    "matrix": "waits for matrix units",
    "semaphore": "waits for semaphores",
}
_BUSY = 0.5  # a unit that is busy for a smaller share of the time does not explain it


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProgram:
    """One distinct program: a jitted function, with shapes of its arguments and its static arguments.

    Attributes:
      live_bytes: the most bytes of live arrays at its calls, without the padding of tiles.
      step: its time, memory and timeline; None: it has no time.
      status: "ok" if it has a time.
      reason: the reason why it has no time.
    """

    name: str
    arguments: str
    calls: int
    live_bytes: int
    step: StepRun | None
    status: Status = "ok"
    reason: str = ""

    @property
    def time_us(self) -> float | None:
        """Simulated time of one call."""
        return None if self.step is None else self.step.time_us

    @property
    def total_us(self) -> float | None:
        """Simulated time of all calls."""
        return None if self.step is None else self.step.time_us * self.calls

    @property
    def needed_bytes(self) -> int:
        """HBM in use during a call: live arrays, and what the compiled program needs in addition to its arguments."""
        if self.step is None:
            return self.live_bytes
        return self.live_bytes + max(0, self.step.memory.needed_bytes - self.step.memory.argument_bytes)

    @property
    def limit(self) -> tuple[str, float] | None:
        """The busiest unit, or a wait that takes longer, and its share of the time; None: there is no time."""
        if self.step is None:
            return None
        part, stalls = whole_run(self.step.run), self.step.run.stalls
        wait = max(stalls, key=lambda cause: stalls[cause])
        if part.limit_share >= _BUSY:
            return part.limit, part.limit_share
        limits = [(part.limit, part.limit_share), (_WAITS[wait], stalls[wait])]
        if self.step.slice_run is not None and self.step.slice_run.exposed_us:
            limits.append(("waits for other devices", self.step.slice_run.exposed_us / self.step.time_us))
        return max(limits, key=lambda limit: limit[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun(Summarised):
    """A program that ran as if on a TPU.

    Attributes:
      programs: the programs, in the order of their first calls.
      sequence: the position in `programs` of each call's program, in the order of the calls.
      topology: chips of the slice along each axis; "" if it ran on one device.
      capacity_bytes: HBM of a device.
      live_bytes: the peak of live arrays on a device, without the padding of tiles.
      largest: the arrays that took most of the peak.
      untimed: number of compilations of other programs, by name: operations outside any jitted function. They ran on
        the CPU, and have no time.
    """

    chip: str
    programs: tuple[TimedProgram, ...]
    sequence: tuple[int, ...]
    capacity_bytes: int
    live_bytes: int
    largest: tuple[HeldArrays, ...]
    untimed: Mapping[str, int] = field(default_factory=dict)
    topology: str = ""

    @property
    def total_us(self) -> float:
        """Simulated time of all calls that have one."""
        return sum(program.total_us or 0.0 for program in self.programs)

    @property
    def needed_bytes(self) -> int:
        """The most HBM in use at once."""
        return max([self.live_bytes, *(program.needed_bytes for program in self.programs)])

    @property
    def fits(self) -> bool:
        """False if a call needs more HBM than a device has."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def failures(self) -> tuple[TimedProgram, ...]:
        """The programs without a time."""
        return tuple(program for program in self.programs if program.step is None)

    def by_time(self) -> list[TimedProgram]:
        """Return the programs, the longest total time first."""
        return sorted(self.programs, key=lambda program: -(program.total_us or 0.0))

    def summary(self) -> Summary:
        """Return the total time, HBM, and a row for each program, as text and tables."""
        where = f"{self.chip} {self.topology}".rstrip()
        return Summary(
            heading=f"{self.total_us / 1e3:,.3f} ms on {where} in {len(self.sequence):,} calls (simulated)",
            facts={
                "HBM": f"{size_text(self.needed_bytes)} of {size_text(self.capacity_bytes)}"
                + ("" if self.fits else ": it does not fit"),
                "no time": "; ".join(f"{program.name}: {program.reason}" for program in self.failures),
                "not timed": ", ".join(self.untimed),
            },
            columns=("call", "arguments", "calls", "µs each", "total µs", "limited by"),
            rows=tuple(
                (
                    program.name,
                    program.arguments,
                    program.calls,
                    program.time_us,
                    program.total_us,
                    None if program.limit is None else program.limit[0],
                )
                for program in self.by_time()
            ),
        )
