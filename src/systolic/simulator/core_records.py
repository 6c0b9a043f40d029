"""Plain records of one core's simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from systolic.simulator.hardware.loop_timer import LoopTime
from systolic.simulator.hardware.timeline import Span
from systolic.support.ranges import Count


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

    `issued` are instructions by unit, as `SimulatedRun.slots` names them. `loop` is the last call's. `category` is
    XProf's `hlo_category`, such as "convolution fusion".
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
    overhead_cycles: Count = 0  # starting copies and checking their flags
    matrix_busy_cycles: Count = 0  # all units together
    hbm_read_bytes: Count = 0
    hbm_written_bytes: Count = 0  # by its own copies; what other devices write meanwhile is the core's alone
    copies: Count = 0
    issued: Mapping[str, Count] = field(default_factory=dict)
    loop: LoopTime | None = None
    regions: tuple[RegionRun, ...] = ()  # those that ran, in the order of the program
    is_pallas: bool = False  # a Pallas kernel, by the HLO; else an operation of XLA's own
    category: str = ""  # "" where the HLO does not say
    flops: Count | None = None  # of one call's matrix products, by the HLO; None: it has none, or that is not known


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
    """The run of one core."""

    core: Count
    cycles: Count
    ops: tuple[OpRun, ...]
    copy_stall_cycles: Count  # waiting for copies to land
    copy_overhead_cycles: Count  # starting copies and checking their flags
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
        """Bytes copied between chip and host, both ways."""
        return sum(
            size.size_bytes * size.count for size in self.copy_sizes if "host" in (size.source, size.destination)
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
    """The run of one SparseCore. Cycles are of the TensorCore's clock; spans of streams are the first tile's."""

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
    """A buffer of an operation in VMEM, in the compiler's own words."""

    op: str
    kind: str  # "SCOPED": of a kernel; "HLO_TEMPORARY": a value between operations
    size_bytes: Count  # all its copies together
    is_spill: bool  # vector registers that did not fit
    what: str
