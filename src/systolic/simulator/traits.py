"""Traits of a run, which select the published programs like it, and with these the error of its time."""

from __future__ import annotations

import re

from systolic.accuracy.time_error import ProgramTraits
from systolic.simulator.core_records import OpRun
from systolic.simulator.records import SimulatedRun

# No published program that was compared has work on SparseCores. Below a tenth of the time they decide little of it.
_SPARSE_SHARE = 0.1
_NUMBER = re.compile(r"\.\d+$")  # that the compiler adds to a name


def traits_of(run: SimulatedRun) -> ProgramTraits:
    core = run.later_core
    sparse = max((sum(op.end_cycles - op.begin_cycles for op in core.ops) for core in run.sparse_cores), default=0)
    sparse /= max(1, core.cycles)
    pallas = sum(op.cycles for op in core.ops if op.is_pallas)
    return ProgramTraits(
        pallas_share=pallas / max(1, core.cycles),
        matrix_share=core.matrix_busy_cycles / max(1, core.cycles * run.matrix_units),
        hbm_share=run.copy_busy_share,
        time_us=run.time_us,
        copies_per_us=core.copies / run.time_us if run.time_us else None,
        unlike="SparseCores" if sparse > _SPARSE_SHARE else "copies to the host" if core.host_bytes else "",
    )


def same_kernel(mine: SimulatedRun, other: SimulatedRun) -> bool:
    """True if most of the time of both goes to Pallas kernels of one name."""
    return kernel_name(mine) == kernel_name(other) != ""


def kernel_name(run: SimulatedRun) -> str:
    """Return the Pallas kernel that takes most of the time; "" if an operation of XLA's does."""
    longest = max(run.later_core.ops, key=_cycles, default=None)
    return _NUMBER.sub("", longest.name) if longest is not None and longest.is_pallas else ""


def _cycles(op: OpRun) -> int:
    return op.cycles
