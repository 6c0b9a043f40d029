"""Report what one core did."""

from __future__ import annotations

from collections.abc import Mapping

from systolic.simulator.core_records import CopySize, CoreRun, OpRun
from systolic.simulator.device_setup import DeviceSetup
from systolic.simulator.hardware.dma_counts import DmaCounts
from systolic.simulator.hardware.mxu import Mxus
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.op_totals import OpTotals


def spent_so_far(counts: DmaCounts, mxus: Mxus) -> dict[str, int]:
    """Return a core's counts so far, by the fields of `OpRun`; MXU counts are of the current operation only."""
    return {
        "copy_stall_cycles": counts.copy_stall_cycles,
        "semaphore_stall_cycles": counts.semaphore_stall_cycles,
        "overhead_cycles": counts.overhead_cycles,
        "hbm_read_bytes": counts.hbm_read_bytes,
        "hbm_written_bytes": counts.hbm_written_bytes,
        "copies": counts.copies,
        "matrix_stall_cycles": mxus.stall_cycles,
        "matrix_busy_cycles": mxus.busy_cycles,
    }


def core_run(
    number: int,
    cycles: int,
    counts: DmaCounts,
    mxus: Mapping[str, Mxus],
    op_totals: Mapping[str, OpTotals],
    setup: DeviceSetup,
    timeline: Timeline | None,
) -> CoreRun:
    """Return the record of a core's run; matrix units and totals go by operation."""
    return CoreRun(
        core=number,
        cycles=cycles,
        ops=tuple(_op_run(name, totals, mxus[name], setup) for name, totals in op_totals.items()),
        copy_stall_cycles=counts.copy_stall_cycles,
        semaphore_stall_cycles=counts.semaphore_stall_cycles,
        copy_overhead_cycles=counts.overhead_cycles,
        matrix_stall_cycles=sum(unit.stall_cycles for unit in mxus.values()),
        matrix_busy_cycles=sum(unit.busy_cycles for unit in mxus.values()),
        hbm_read_bytes=counts.hbm_read_bytes,
        hbm_written_bytes=counts.hbm_written_bytes + counts.hbm_received_bytes,
        copies=counts.copies,
        copy_sizes=tuple(
            CopySize(source=source, destination=destination, size_bytes=size, run_bytes=run, count=count)
            for (source, destination, size, run), count in counts.sizes.items()
        ),
        spans=timeline.spans if timeline is not None else (),
        spans_left_out=timeline.left_out if timeline is not None else 0,
    )


def _op_run(name: str, totals: OpTotals, mxus: Mxus, setup: DeviceSetup) -> OpRun:
    use, hlo = setup.uses.get(name), setup.hlo
    return OpRun(
        name=name,
        scope=hlo.scopes.get(name, "") if hlo is not None else "",
        calls=totals.calls,
        begin_cycles=totals.begin,
        end_cycles=totals.end,
        cycles=totals.cycles,
        issued=use.total(totals.block_counts) if use is not None and totals.block_counts else {},
        loop=totals.loop,
        regions=totals.regions(setup.translations[name].blocks, mxus.stalls_by_block(), use),
        is_pallas=hlo is not None and name in hlo.kernels,
        category=hlo.kinds.category(name) if hlo is not None else "",
        flops=hlo.flops(name) if hlo is not None else None,
        **totals.spent,
    )
