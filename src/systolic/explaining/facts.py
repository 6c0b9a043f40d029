"""A simulated run as the parts of an explanation: VMEM, regions of code, the roofline."""

from __future__ import annotations

import re
from collections.abc import Sequence

from systolic.chips import Chip, UnsupportedDtypeError
from systolic.explaining.explanation import OperandTraffic, Region, Roofline, VmemMap, VmemPart
from systolic.explaining.limits import main_op
from systolic.explaining.study import Study
from systolic.simulator import SimulatedRun, VmemBuffer

_MOST_REGIONS = 16

# The compiler's words for a block of an operand.
_WINDOW = re.compile(r"(?P<side>input|output) window allocation for operator (?:input|output) (?P<number>\d+)")
_COPIES = re.compile(r"has (\d+) buffering levels")


def vmem_map(run: SimulatedRun, now: Study, chip: Chip) -> VmemMap:
    """The compiler's report of VMEM, of the operation that takes the longest, with the kernel's own names."""
    op = main_op(run)
    buffers = [buffer for buffer in run.vmem if op is not None and buffer.op == op.name]
    names = _window_names(buffers, now.traffic)
    scratch = [part for call in now.calls for part in call.scratch]
    return VmemMap(
        parts=tuple(_part(buffer, names, scratch) for buffer in buffers),
        limit_bytes=max((call.vmem_limit_bytes for call in now.calls), default=chip.scoped_vmem_bytes),
        capacity_bytes=chip.vmem_bytes_per_core,
    )


def _part(buffer: VmemBuffer, names: dict[str, str], scratch: list[tuple[str, int]]) -> VmemPart:
    window = _WINDOW.search(buffer.what)
    copies = _COPIES.search(buffer.what)
    if window is not None:
        kind, name = "window", names.get(window.group(), f"{window['side']} {window['number']}")
    elif buffer.is_spill:
        kind, name = "spill", "registers that did not fit"
    elif "scratch" in buffer.what:
        kind, name = "scratch", _scratch_name(buffer.size_bytes, scratch)
    else:
        kind, name = "temporary", buffer.what or "temporary of the compiler"
    return VmemPart(
        op=buffer.op,
        name=name,
        kind=kind,
        size_bytes=buffer.size_bytes,
        copies=int(copies.group(1)) if copies is not None else 1,
    )


def _scratch_name(size_bytes: int, scratch: list[tuple[str, int]]) -> str:
    """The first buffer of that size that has not been named yet: both lists go in the order of the parameters."""
    found = next((each for each in scratch if each[1] == size_bytes), None)
    if found is None:
        return "scratch"
    scratch.remove(found)
    return found[0]


def _window_names(buffers: Sequence[VmemBuffer], traffic: Sequence[OperandTraffic]) -> dict[str, str]:
    """What the kernel calls the operands that the compiler numbers: both go in the order of the kernel's parameters."""
    found: dict[str, str] = {}
    for side in ("input", "output"):
        windows = [match for buffer in buffers if (match := _WINDOW.search(buffer.what)) and match["side"] == side]
        windows.sort(key=lambda match: int(match["number"]))
        operands = [each.operand for each in traffic if each.role == side]
        if len(windows) == len(operands):
            found.update(zip((match.group() for match in windows), operands, strict=True))
    return found


def regions(run: SimulatedRun) -> tuple[Region, ...]:
    """The pieces of straight code that take the longest, in the order of the program."""
    op = main_op(run)
    if op is None:
        return ()
    longest = sorted(op.regions, key=lambda each: -each.cycles)[:_MOST_REGIONS]
    return tuple(
        Region(
            op=op.name,
            name=f"{'once' if each.depth == 0 else 'in the loop' if each.depth == 1 else f'in {each.depth} loops'}, "
            f"bundles {each.first_bundle:,} to {each.first_bundle + each.bundles - 1:,}",
            bundles=each.bundles,
            executions=each.executions,
            cycles=each.cycles,
            matrix_stall_cycles=each.matrix_stall_cycles,
            issued=each.issued,
        )
        for each in sorted(longest, key=lambda each: each.first_bundle)
    )


def roofline(chip: Chip, dtype: str) -> Roofline:
    """The limits of one device for products of `dtype`; bfloat16's where the chip does not multiply it."""
    try:
        peak = chip.peak_ops_per_s(dtype)
    except UnsupportedDtypeError:
        dtype, peak = "bfloat16", chip.peak_ops_per_s("bfloat16")
    return Roofline(
        dtype=dtype,
        peak_flops_per_s=peak,
        hbm_bytes_per_s=chip.hbm_bytes_per_s,
        simulated_hbm_bytes_per_s=chip.machine.hbm_bytes_per_s,
    )
