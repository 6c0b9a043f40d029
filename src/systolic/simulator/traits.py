"""Traits of a run, which select the published programs like it, and with these the error of its time."""

from __future__ import annotations

import re

from systolic.accuracy.time_error import ProgramTraits
from systolic.simulator.core_records import OpRun
from systolic.simulator.records import SimulatedRun

_NUMBER = re.compile(r"\.\d+$")  # that the compiler adds to a name
_SIZE = re.compile(r"(?<=_)\d{2,}(?=$|[-_])", re.ASCII)  # of a tile or an array, as in "lce_fwd_bt_2048_ht_512"


def traits_of(run: SimulatedRun, link_cycles: int = 0) -> ProgramTraits:
    """Return the traits of a run, in which a device of a slice waits `link_cycles` for links alone."""
    core = run.later_core
    cycles = max(1, core.cycles)
    sparse = max((sum(op.end_cycles - op.begin_cycles for op in core.ops) for core in run.sparse_cores), default=0)
    matrix = core.matrix_busy_cycles / (cycles * run.matrix_units)
    copy_stalls, all_stalls = run.stalls["copy"] + run.stalls["overhead"], run.stall_share
    return ProgramTraits(
        pallas_share=sum(op.cycles for op in core.ops if op.is_pallas) / cycles,
        matrix_share=matrix,
        hbm_share=run.copy_busy_share,
        time_us=run.time_us,
        copies_per_us=core.copies / run.time_us if run.time_us else None,
        unlike="copies to the host" if core.host_bytes else "",
        vector_share=max(0.0, 1 - all_stalls - matrix),
        copy_share=max(0.0, copy_stalls - sparse / cycles),
        # The core waits for SparseCores at a semaphore. Those that run beside it limit nothing.
        sparse_share=min(run.stalls["semaphore"], sparse / cycles),
        link_share=min(1.0, link_cycles / cycles),
        kernel=kernel_name(run),
    )


def same_kernel(mine: SimulatedRun, other: SimulatedRun) -> bool:
    """True if most of the time of both goes to Pallas kernels of one family."""
    return kernel_name(mine) == kernel_name(other) != ""


def kernel_name(run: SimulatedRun) -> str:
    """Return the Pallas kernel that takes most of the time, by its family; "" if an operation of XLA's does.

    A family is a name without the sizes of arrays and tiles that some kernels have in theirs.
    """
    longest = max(run.later_core.ops, key=_cycles, default=None)
    if longest is None or not longest.is_pallas:
        return ""
    return _SIZE.sub("#", _NUMBER.sub("", longest.name))


def _cycles(op: OpRun) -> int:
    return op.cycles
