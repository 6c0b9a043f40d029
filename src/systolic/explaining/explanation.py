"""The records of an explanation, which serialise to JSON and back. `report` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from systolic.accuracy.time_error import TimeError
from systolic.analysis import LineOps
from systolic.explaining.parts import LineTime, OperandTraffic, Region, VmemMap
from systolic.simulator import SimulatedRun, SliceRun
from systolic.support.call_errors import WrongCallError
from systolic.support.ranges import Amount, Change, Count, Rate, Time
from systolic.support.saved import SavedResult
from systolic.support.summary import Summary

# `this`: the function that is explained. `xla`: what XLA makes of the same result without Pallas. `other`: a function
# that the user gave to compare with. `change`: this function with one parameter changed.
ProgramRole = Literal["this", "xla", "other", "change"]


FORMAT = 1  # of the JSON; raised when a field changes its meaning


class ExplanationError(WrongCallError, ValueError):
    """A text is not an explanation that this version reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The communication of a program on a slice."""

    exposed_us: Amount  # time in which the slowest device waits for others and does nothing else
    hidden_us: Amount  # the rest of the time of its collectives
    link_bytes: Count  # over the busiest link, in one direction
    link_us: Amount  # time in which the link carries them

    @staticmethod
    def of(run: SliceRun) -> Communication:
        """Read it from a run."""
        busiest = max(run.links, key=lambda link: link.busy_cycles, default=None)
        return Communication(
            exposed_us=run.exposed_us,
            hidden_us=run.hidden_us,
            link_bytes=busiest.sent_bytes if busiest is not None else 0,
            link_us=busiest.busy_cycles / run.clock_hz * 1e6 if busiest is not None else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program that was compiled and simulated, or was to be.

    Attributes:
      label: for tables and plots: "this kernel", "XLA", "vmem_limit_bytes=67108864".
      time_us: simulated; None where there is none, and `reason` says why.
      flops: useful operations of the result, on a slice one device's share of them; 0 where they are not known.
      hbm_bytes: read and written by all cores of the device, on a slice of the slowest.
      communication: on a slice, with other devices.
      run: everything that the simulator says of it; None for changes, on a slice, and where there is none.
      slice_run: the same on a slice.
    """

    label: str
    role: ProgramRole
    time_us: Time | None
    reason: str = ""
    flops: Amount = 0.0
    hbm_bytes: Count = 0
    communication: Communication | None = None
    run: SimulatedRun | None = None
    slice_run: SliceRun | None = None

    @property
    def device_run(self) -> SimulatedRun | None:
        """The run of the device, on a slice of the slowest."""
        return self.run if self.slice_run is None else self.slice_run.slowest

    @property
    def error(self) -> TimeError | None:
        """The error of the time; None where there is no run."""
        run = self.run if self.slice_run is None else self.slice_run
        return run.error if run is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLimits:
    """The chip's limits, of one device, and of the simulator's model of it."""

    dtype: str  # whose peak it is
    peak_flops_per_s: Rate
    hbm_bytes_per_s: Rate  # as published
    simulated_hbm_bytes_per_s: Rate  # reached by the simulator's copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of the timeline worth looking at: the ramp, one steady step, the end."""

    title: str
    begin_us: Amount
    end_us: Amount
    words: str  # a description in a sentence or two


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """One finding: what costs time, and what changing it brings."""

    title: str  # one line: "tiles 1024/2048/1024"
    why: str  # the evidence in the run, with numbers
    change: str  # the flag or line to change, as the user would write it
    time_us: Time | None  # after the change; None where it was not tried
    # Share of this function's time that the change saves; negative: it costs; None: not known.
    saving: Change | None
    provenance: Literal["simulated", "modelled"]  # how `saving` is known
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(SavedResult):
    """Everything that `systolic explain` found of one function on one chip.

    Attributes:
      function: its name.
      arguments: shapes and dtypes, as text.
      flags: what was given to the compiler, for every program.
      verdict: one line: the time, its cause, and the first thing to change.
      cause, advice: the last two parts of the verdict; "" in results of versions that did not store them.
      programs: the function itself, then the others.
      windows: stretches of the function's own timeline, whose spans are in `run`.
      limiter: what limits it, in few words: "HBM bandwidth"; "": nothing does.
      steps: of the grids of all kernels, over all their executions; 0: not known.
      topology: the slice, "2x4"; "" on one device.
      savings: changes of the function, the most worthwhile first; then what could replace it, in the same order.
      notes: what could not be worked out, and what was assumed of the function; the simulator's are in its run.
    """

    saved_name: ClassVar = "explanation"
    saved_error: ClassVar = ExplanationError

    function: str
    arguments: tuple[str, ...]
    chip: str
    chip_title: str
    versions: Mapping[str, str | None]
    verdict: str
    programs: tuple[Program, ...]
    roofline: ChipLimits
    windows: tuple[Window, ...] = ()
    traffic: tuple[OperandTraffic, ...] = ()
    vmem: VmemMap | None = None
    regions: tuple[Region, ...] = ()
    lines: tuple[LineOps, ...] = ()
    line_times: tuple[LineTime, ...] = ()
    steps: Count = 0
    limiter: str = ""
    savings: tuple[Saving, ...] = ()
    notes: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    topology: str = ""
    cause: str = ""
    advice: str = ""
    format: int = FORMAT

    @property
    def run(self) -> SimulatedRun:
        """The simulated run of the function itself, on a slice the run of the slowest device."""
        run = self.programs[0].device_run
        assert run is not None
        return run

    @property
    def slice_run(self) -> SliceRun | None:
        """The simulated run of the function on all devices of a slice; None on one device."""
        return self.programs[0].slice_run

    @property
    def time_us(self) -> float:
        """Simulated time of the function itself."""
        return self.run.time_us

    def summary(self) -> Summary:
        """Summarize where the time goes, with a row for each change that was tried."""
        return Summary(
            heading=self.verdict,
            facts={"notes": "; ".join(self.notes)},
            columns=("change", "saves %", "µs after", "is", "how"),
            rows=tuple(
                (
                    saving.title,
                    None if saving.saving is None else 100 * saving.saving,
                    saving.time_us,
                    saving.provenance,
                    saving.change,
                )
                for saving in self.savings
            ),
        )
