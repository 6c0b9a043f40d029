"""Durations on a SparseCore, and what it has moved."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import MachineModel, SparseCoreModel


@dataclass(slots=True)
class SparseCounts:
    """Bytes that one SparseCore has moved, and cycles that its tiles waited."""

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    streams: int = 0
    indices: int = 0
    stall_cycles: float = 0.0  # of all tiles together


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseClock:
    """Durations on a SparseCore, in cycles of the TensorCore's clock, which all of a run counts in."""

    cycle: float
    stream_bytes_per_cycle: float
    index_cycles: float
    latency_cycles: float

    @staticmethod
    def of(model: SparseCoreModel, machine: MachineModel) -> SparseClock:
        """The model's constants at the TensorCore's clock."""
        cycle = machine.clock_hz / model.clock_hz
        return SparseClock(
            cycle=cycle,
            stream_bytes_per_cycle=model.stream_bytes_per_s / machine.clock_hz,
            index_cycles=model.index_cycles * cycle,
            latency_cycles=model.stream_latency_cycles * cycle,
        )
