"""What a simulation reports: plain records, which serialise to JSON and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import cattrs

from systolic.chips.time_error import NOT_SAID, TimeError
from systolic.ranges import Amount, Count, Hertz, PositiveCount
from systolic.simulator.hardware.loop_timer import LoopTime
from systolic.simulator.hardware.timeline import Span
from systolic.summary import Summarised, Summary
from systolic.untrusted import read_record

FORMAT = 1  # of JSON text; a change that older versions cannot read makes it another


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRun:
    """One basic block of an operation, straight code, over all its executions. Waits for copies are not among it."""

    first_bundle: Count
    bundles: Count
    depth: Count  # of loops around it
    executions: Count
    cycles: Count  # matrix stalls included
    matrix_stall_cycles: Count
    issued: Mapping[str, Count] = field(default_factory=dict)  # by unit
    lines: Mapping[str, float] = field(default_factory=dict)  # bundles by "kernel.py:45"; several may share one


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRun:
    """One operation of the program on one core, over all its calls. Cycles count from the program's start.

    `issued` are instructions by unit, as `SimulatedRun.slots` names them. `loop` is that of the last call.
    """

    name: str
    scope: str  # JAX's name stack where the operation was written, "jit(f)/dot_general"; "" where the HLO has none
    calls: Count
    begin_cycles: Count  # of the first call
    end_cycles: Count  # of the last
    cycles: Count  # in all calls together
    copy_stall_cycles: Count = 0
    semaphore_stall_cycles: Count = 0
    matrix_stall_cycles: Count = 0
    overhead_cycles: Count = 0  # starting copies and looking at their flags
    matrix_busy_cycles: Count = 0  # all units together
    hbm_read_bytes: Count = 0
    hbm_written_bytes: Count = 0  # by its own copies; what other devices write meanwhile is the core's alone
    copies: Count = 0
    issued: Mapping[str, Count] = field(default_factory=dict)
    loop: LoopTime | None = None
    regions: tuple[RegionRun, ...] = ()  # those that ran, in the order of the program
    is_pallas: bool = False  # a Pallas kernel, by the HLO; else an operation of XLA's own


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySize:
    """Copies of one kind: between which memories, how large, in pieces of how many bytes."""

    source: str
    destination: str
    size_bytes: Count
    run_bytes: Count | None  # in one piece before the copy strides on; 0: all of it; None: the listing does not say
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRun:
    """What one core did."""

    core: Count
    cycles: Count
    ops: tuple[OpRun, ...]
    copy_stall_cycles: Count  # waiting for copies to land
    copy_overhead_cycles: Count  # starting copies and looking at their flags
    matrix_stall_cycles: Count  # waiting for matrix units or their results
    matrix_busy_cycles: Count  # all units together
    hbm_read_bytes: Count
    hbm_written_bytes: Count
    copies: Count
    semaphore_stall_cycles: Count = 0  # waiting for another core, or for a signal of its own
    copy_sizes: tuple[CopySize, ...] = ()
    spans: tuple[Span, ...] = ()
    spans_left_out: Count = 0

    @property
    def host_bytes(self) -> int:
        """Bytes that it copied between chip and host, both ways."""
        return sum(
            each.size_bytes * each.count for each in self.copy_sizes if "host" in (each.source, each.destination)
        )

    @property
    def issued(self) -> dict[str, int]:
        """Instructions issued, by unit."""
        total: dict[str, int] = {}
        for op in self.ops:
            for unit, count in op.issued.items():
                total[unit] = total.get(unit, 0) + count
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseOpRun:
    """One program that a SparseCore ran, from its first bundle to its last."""

    name: str
    begin_cycles: Count
    end_cycles: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCoreRun:
    """What one SparseCore did. Cycles are of the TensorCore's clock; spans of streams are those of the first tile."""

    core: Count
    ops: tuple[SparseOpRun, ...]
    hbm_read_bytes: Count
    hbm_written_bytes: Count
    streams: Count
    indices: Count  # in the lists of all streams
    tile_stall_cycles: Count  # all tiles together, waiting for flags
    spans: tuple[Span, ...] = ()
    spans_left_out: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemBuffer:
    """Something that an operation keeps in VMEM, in the compiler's own words."""

    op: str
    kind: str  # "SCOPED": of a kernel; "HLO_TEMPORARY": a value between operations
    size_bytes: Count  # all its copies together
    is_spill: bool  # vector registers that did not fit
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun(Summarised):
    """A program on a chip's model. Times are of the later core and leave the prefetch out.

    `prefetch_us` is what the copies add that XLA starts ahead of the program to bring an argument into VMEM: with
    repeated calls they run during the call before, and published device times match the program without them.

    `slots` are instructions that a unit can issue in a cycle: mxu, push (weights into matrix units, where the compiler
    counts them apart), xlu (across lanes), vpu (elementwise), pop (results of the others), eup (transcendental), load,
    fill (loads of spilled registers), store, spill, scalar. It is empty where the program came without the compiler's
    table of them.
    """

    chip: str  # behind an @, its clock state where it is not the default one
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
    format: int = FORMAT  # of `to_json`

    def check_saved(self) -> None:
        """Refuse a saved run that takes no time.

        Raises:
          ValueError: it takes none.
        """
        if not any(core.cycles for core in self.cores):
            raise ValueError("cores: there is none, or none has a cycle")

    @property
    def cycles(self) -> int:
        """Cycles of the core that ends last."""
        return max(core.cycles for core in self.cores)

    @property
    def provenance(self) -> Literal["simulated", "modelled"]:
        """How the time is known: "modelled" where SparseCores worked, whose constants too few published times check."""
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
        """Nine of ten published times of such programs lie within so much of the simulated ones; None: not known."""
        return self.error.percent

    @property
    def prefetch_us(self) -> float:
        """Time that the first call takes longer."""
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
        """Says how long it takes and what that goes into, with a row for each operation of the later core."""
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

    def to_json(self) -> str:
        """Writes JSON text, which `from_json` reads."""
        return json.dumps(cattrs.unstructure(self))

    @staticmethod
    def from_json(text: str) -> SimulatedRun:
        """Reads a run that `to_json` wrote.

        Raises:
          ValueError: the text is no such run.
        """
        return read_record(text, SimulatedRun, "simulated run")


def _most_by_op(buffers: Iterable[VmemBuffer]) -> int:
    totals: Counter[str] = Counter()
    for buffer in buffers:
        totals[buffer.op] += buffer.size_bytes
    return max(totals.values(), default=0)
