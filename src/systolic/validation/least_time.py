"""The least time of a compiled program, from counts alone: no constant that was fitted enters it."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.simulator import SimulatedRun, SliceRun


def least_us(run: SimulatedRun | SliceRun | None, run_chip: Chip) -> float | None:
    """Return the sum over operations of the time of their bundles at the peak clock, or of their HBM traffic at the
    published bandwidth, whichever is longer; None for a slice.
    """
    if not isinstance(run, SimulatedRun):
        return None
    bundles: dict[str, int] = {}  # of the core that issues most
    hbm_bytes: dict[str, int] = {}
    for op in (op for core in run.cores for op in core.ops):
        issued = sum(region.bundles * region.executions for region in op.regions)
        bundles[op.name] = max(issued, bundles.get(op.name, 0))
        hbm_bytes[op.name] = hbm_bytes.get(op.name, 0) + op.hbm_read_bytes + op.hbm_written_bytes
    seconds = [
        max(issued / run_chip.peak_clock_hz, hbm_bytes[name] / run_chip.hbm_bytes_per_s)
        for name, issued in bundles.items()
    ]
    return sum(seconds) * 1e6
