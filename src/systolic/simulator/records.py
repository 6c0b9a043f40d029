"""The record of a simulated program, which serializes to JSON and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from systolic.accuracy.time_error import NOT_SAID, TimeError
from systolic.simulator.core_records import CoreRun, SparseCoreRun, VmemBuffer
from systolic.support.ranges import Amount, Count, Hertz, PositiveCount
from systolic.support.saved import SavedResult
from systolic.support.summary import Summary

FORMAT = 1  # of JSON text; a change that older versions cannot read makes it another


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun(SavedResult):
    """A program on a chip's model. Times are of the later core and leave the prefetch out.

    `prefetch_us` is the time of copies that XLA starts before the program to bring an argument into VMEM: with
    repeated calls they run during the call before, and published device times match the program without them.

    `slots` are instructions that a unit can issue in a cycle: mxu, push (weights into matrix units, where the compiler
    counts them apart), xlu (across lanes), vpu (elementwise), pop (results of the others), eup (transcendental), load,
    fill (loads of spilled registers), store, spill, scalar. It is empty where the program came without the compiler's
    table of them.
    """

    saved_name: ClassVar = "simulated run"

    chip: str  # after an @, its clock state if not the default
    clock_hz: Hertz
    cores: tuple[CoreRun, ...]
    prefetch_cycles: Count
    matrix_units: PositiveCount  # of one core
    bundles: Count  # of the whole program's code
    hbm_bytes_per_cycle: Amount = 0.0  # what the device's copies share
    slots: Mapping[str, PositiveCount] = field(default_factory=dict)
    vmem: tuple[VmemBuffer, ...] = ()
    assumptions: tuple[str, ...] = ()  # values that were not known and decided something in XLA's own operations
    flags: Mapping[str, str] = field(default_factory=dict)  # that it was compiled with
    error: TimeError = NOT_SAID  # how far the time may be off
    sparse_cores: tuple[SparseCoreRun, ...] = ()  # empty where they had nothing to do
    module: str = ""  # the HLO module's name, "jit_f", by which a profile knows the program
    format: int = FORMAT  # of `to_json`

    def check_saved(self) -> None:
        """Raise `ValueError` for a saved run that takes no time."""
        if not any(core.cycles for core in self.cores):
            raise ValueError("cores: there is none, or none has a cycle")

    @property
    def cycles(self) -> int:
        """Cycles of the core that ends last."""
        return max(core.cycles for core in self.cores)

    @property
    def provenance(self) -> Literal["simulated", "modelled"]:
        """Return "modelled" where SparseCores worked, whose constants too few published times check."""
        return "modelled" if self.sparse_cores else "simulated"

    @property
    def later_core(self) -> CoreRun:
        """The core that ends last."""
        return max(self.cores, key=lambda core: core.cycles)

    @property
    def time_us(self) -> float:
        """Simulated time."""
        return self.cycles / self.clock_hz * 1e6

    @property
    def error_percent(self) -> float | None:
        """Half width of the interval with nine of ten published times of such programs, in percent; None: not known."""
        return self.error.percent

    @property
    def prefetch_us(self) -> float:
        """Extra time of the first call."""
        return self.prefetch_cycles / self.clock_hz * 1e6

    @property
    def stalls(self) -> dict[str, float]:
        """Shares of the later core's cycles in which it waited, by cause: copy, overhead, matrix, semaphore."""
        core = self.later_core
        cycles = max(1, core.cycles)
        return {
            "copy": core.copy_stall_cycles / cycles,
            "overhead": core.copy_overhead_cycles / cycles,
            "matrix": core.matrix_stall_cycles / cycles,
            "semaphore": core.semaphore_stall_cycles / cycles,
        }

    @property
    def stall_share(self) -> float:
        """Share of the later core's cycles in which it waited for copies, the matrix units or a semaphore."""
        return sum(self.stalls.values())

    @property
    def matrix_busy_share(self) -> float:
        """Share of all cores' matrix-unit cycles in which rows went through."""
        busy = sum(core.matrix_busy_cycles for core in self.cores)
        return busy / max(1, self.cycles * self.matrix_units * len(self.cores))

    @property
    def copy_busy_share(self) -> float:
        """Share of the time in which bytes crossed HBM."""
        return self.hbm_bytes / self.hbm_bytes_per_cycle / max(1, self.cycles) if self.hbm_bytes_per_cycle else 0.0

    @property
    def busy(self) -> dict[str, float]:
        """Busy share of each unit: of its issue slots; for mxu and dma, of the time in which work went through."""
        offered = max(1, self.cycles * len(self.cores))
        shares = {
            unit: sum(core.issued.get(unit, 0) for core in self.cores) / (offered * slots)
            for unit, slots in self.slots.items()
        }
        return {**shares, "mxu": self.matrix_busy_share, "dma": self.copy_busy_share}

    @property
    def hbm_read_bytes(self) -> int:
        """Bytes that all cores read from HBM."""
        return sum(core.hbm_read_bytes for core in (*self.cores, *self.sparse_cores))

    @property
    def hbm_written_bytes(self) -> int:
        """Bytes that all cores wrote to HBM."""
        return sum(core.hbm_written_bytes for core in (*self.cores, *self.sparse_cores))

    @property
    def hbm_bytes(self) -> int:
        """Bytes that all cores read from HBM and wrote to it."""
        return self.hbm_read_bytes + self.hbm_written_bytes

    @property
    def vmem_bytes(self) -> int:
        """The most VMEM that an operation takes, by the compiler's own report."""
        return _most_by_op(self.vmem)

    @property
    def spill_bytes(self) -> int:
        """VMEM for vector registers that did not fit, of the operation with most of it."""
        return _most_by_op(buffer for buffer in self.vmem if buffer.is_spill)

    def summary(self) -> Summary:
        """Return the time and its parts, with a row for each operation of the later core."""
        core, us = self.later_core, 1e6 / self.clock_hz
        waits = ", ".join(f"{cause} {share:.0%}" for cause, share in self.stalls.items() if share >= 0.005)
        return Summary(
            heading=f"{self.time_us:,.1f} µs {self.error.words} on {self.chip} ({self.provenance})",
            facts={
                "cycles": f"{self.cycles:,} at {self.clock_hz / 1e9:.2f} GHz",
                "matrix units": f"busy {self.matrix_busy_share:.0%}",
                "HBM": f"busy {self.copy_busy_share:.0%}, {self.hbm_bytes / 1e6:,.1f} MB",
                "waits": waits,
                "flags": ", ".join(f"{name}={value}" for name, value in self.flags.items()),
                "assumed": "; ".join(self.assumptions),
            },
            columns=("operation", "where", "calls", "µs", "of the time %"),
            rows=tuple(
                (op.name, op.scope, op.calls, op.cycles * us, 100 * op.cycles / max(1, core.cycles))
                for op in sorted(core.ops, key=lambda op: -op.cycles)
            ),
        )


def _most_by_op(buffers: Iterable[VmemBuffer]) -> int:
    totals: Counter[str] = Counter()
    for buffer in buffers:
        totals[buffer.op] += buffer.size_bytes
    return max(totals.values(), default=0)
