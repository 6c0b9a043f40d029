"""Records of a predicted step, which serialize to JSON and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from systolic.accuracy.time_error import TimeError
from systolic.simulator import CollectiveRun, SimulatedRun, SliceRun
from systolic.steps.parts import Pass
from systolic.support.ranges import Amount, Change, Count, PositiveCount, Rate
from systolic.support.saved import SavedResult
from systolic.support.summary import Summary

GIB = 2**30

FORMAT = 1  # of JSON text; raised by a change that older versions cannot read


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """HBM of one device, as the compiler reports it.

    Attributes:
      argument_bytes: state, weights and inputs.
      result_bytes: results.
      donated_bytes: results that reuse arguments' memory.
      temporary_bytes: the peak of intermediate values.
      code_bytes: the program.
      capacity_bytes: HBM of a device. The runtime reserves some of it.
      peak_bytes: the peak of all of this, without the code, but with temporaries in VMEM and in the host's memory;
        None: the compiler did not report it.
    """

    argument_bytes: Count
    result_bytes: Count
    donated_bytes: Count
    temporary_bytes: Count
    code_bytes: Count
    capacity_bytes: Count
    peak_bytes: Count | None = None

    @property
    def needed_bytes(self) -> int:
        """The peak of all bytes in use, or an upper limit of it where temporaries are elsewhere."""
        results = max(0, self.result_bytes - self.donated_bytes)
        together = self.argument_bytes + results + self.temporary_bytes
        return min(self.peak_bytes or together, together) + self.code_bytes

    @property
    def left_bytes(self) -> int:
        """Bytes that stay free; negative: bytes that are missing."""
        return self.capacity_bytes - self.needed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRun:
    """The cost of one part of the model on the device that ends last, in one pass over it."""

    part: str
    in_pass: Pass
    cycles: Count
    matrix_busy_cycles: Count  # of all units together
    hbm_bytes: Count
    exposed_cycles: Count  # waiting for other devices and doing nothing else
    sent_bytes: Count  # to other devices
    limit: str  # the busiest resource meanwhile
    limit_share: Amount  # the share of the time in which it is busy


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """A change that would help, with the most that it can save, by arithmetic. It has not been simulated."""

    title: str
    change: str
    saving: Change  # share of the step's time


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun(SavedResult):
    """A predicted step. Its times belong to the device that ends last.

    `flops` and `flops_causal` are the model's, see `systolic.Step`; `mfu` is flops / (time × devices × peak),
    with the published peak of bfloat16.
    """

    saved_name: ClassVar = "predicted step"

    name: str
    chip: str
    topology: str  # "" for one device
    devices: PositiveCount
    tokens: Count
    flops: Amount
    flops_causal: Amount
    peak_ops_per_s: Rate  # of one device
    memory: StepMemory
    parts: tuple[PartRun, ...]
    changes: tuple[StepChange, ...]
    run: SimulatedRun  # of the device that ends last
    slice_run: SliceRun | None  # None: the step is one device's
    compile_s: Amount
    from_cache: bool
    simulate_s: Amount  # reading and executing the program
    format: int = FORMAT  # of `to_json`

    @property
    def time_us(self) -> float:
        """Simulated time of the step."""
        return self.run.time_us

    @property
    def error(self) -> TimeError:
        """The error of the time: how far it may be off, or why that is not known."""
        return self.run.error if self.slice_run is None else self.slice_run.error

    @property
    def tokens_per_s_per_device(self) -> float:
        """Tokens per second and device."""
        return self.tokens / self.devices / self.time_us * 1e6

    @property
    def mfu(self) -> float:
        """Model FLOP utilization, with attention counted in full."""
        return self._utilisation(self.flops)

    @property
    def mfu_causal(self) -> float:
        """Model FLOP utilization, with half of a causal attention."""
        return self._utilisation(self.flops_causal)

    def _utilisation(self, flops: float) -> float:
        return flops / (self.time_us * 1e-6 * self.devices * self.peak_ops_per_s)

    @property
    def collectives(self) -> tuple[CollectiveRun, ...]:
        """The collectives of the slowest device."""
        return () if self.slice_run is None else self.slice_run.collectives

    def us(self, cycles: float) -> float:
        """Return cycles as a time."""
        return cycles / self.run.clock_hz * 1e6

    def summary(self) -> Summary:
        """Return the time, the rates that follow from it, and a row for each part, as text and tables."""
        where = f"{self.devices} × {self.chip}" + (f", {self.topology}" if self.topology else "")
        return Summary(
            heading=f"{self.time_us / 1e3:,.2f} ms {self.error.words} on {where} ({self.run.provenance})",
            facts={
                "tokens": f"{self.tokens_per_s_per_device:,.0f} per second and device" if self.tokens else "",
                "MFU": f"{self.mfu:.1%}, with causal attention counted in half {self.mfu_causal:.1%}"
                if self.flops
                else "",
                "HBM": f"{self.memory.needed_bytes / GIB:.2f} of {self.memory.capacity_bytes / GIB:.2f} GiB",
            },
            columns=("part", "pass", "ms", "of the time %", "limited by"),
            rows=tuple(
                (
                    part.part,
                    part.in_pass,
                    self.us(part.cycles) / 1e3,
                    100 * part.cycles / max(1, self.run.cycles),
                    part.limit,
                )
                for part in self.parts
            ),
        )
