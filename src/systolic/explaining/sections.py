"""The sections of an explanation that come from a simulated run: VMEM, regions of code, the limits of the chip."""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Sequence

from systolic.chips import Chip
from systolic.explaining.bottleneck import main_op
from systolic.explaining.explanation import ChipLimits
from systolic.explaining.function_analysis import FunctionAnalysis
from systolic.explaining.parts import LineTime, OperandTraffic, Region, VmemKind, VmemMap, VmemPart
from systolic.simulator import RegionRun, SimulatedRun, VmemBuffer

_MAX_REGIONS = 16

# The compiler's words for a block of an operand.
_WINDOW = re.compile(r"(?P<side>input|output) window allocation for operator (?:input|output) (?P<number>\d+)")
_COPIES = re.compile(r"has (\d+) buffering levels")


def vmem_map(run: SimulatedRun, now: FunctionAnalysis, chip: Chip) -> VmemMap:
    """Read the compiler's report of VMEM for the longest operation, with the kernel's own names."""
    op = main_op(run)
    buffers = [buffer for buffer in run.vmem if op is not None and buffer.op == op.name]
    names = {**_window_names(buffers, now.traffic), **_scratch_names(buffers, now)}
    return VmemMap(
        parts=tuple(_part(buffer, names.get(at)) for at, buffer in enumerate(buffers)),
        limit_bytes=max((call.vmem_limit_bytes for call in now.calls), default=chip.scoped_vmem_bytes),
        capacity_bytes=chip.vmem_bytes_per_core,
    )


def _kind(buffer: VmemBuffer) -> VmemKind:
    if _WINDOW.search(buffer.what):
        return "window"
    return "spill" if buffer.is_spill else "scratch" if "scratch" in buffer.what else "temporary"


def _part(buffer: VmemBuffer, name: str | None) -> VmemPart:
    window, copies = _WINDOW.search(buffer.what), _COPIES.search(buffer.what)
    otherwise = {
        "window": f"{window['side']} {window['number']}" if window is not None else "",
        "spill": "registers that did not fit",
        "scratch": "scratch",
        "temporary": buffer.what or "temporary of the compiler",
    }
    return VmemPart(
        op=buffer.op,
        name=name or otherwise[_kind(buffer)],
        kind=_kind(buffer),
        size_bytes=buffer.size_bytes,
        copies=int(copies.group(1)) if copies is not None else 1,
    )


def _scratch_names(buffers: Sequence[VmemBuffer], now: FunctionAnalysis) -> dict[int, str]:
    """Name scratch buffers, by place: buffers of one size are reported in the order of the kernel's parameters."""
    declared = [buffer for call in now.calls for buffer in call.scratch]
    reported = [(at, buffer.size_bytes) for at, buffer in enumerate(buffers) if _kind(buffer) == "scratch"]
    by_number: dict[int, str] = {}
    for size_bytes in {size_bytes for _, size_bytes in declared}:
        names = [name for name, size in declared if size == size_bytes]
        by_number.update(zip((at for at, size in reported if size == size_bytes), names, strict=False))
    return by_number


def _window_names(buffers: Sequence[VmemBuffer], traffic: Sequence[OperandTraffic]) -> dict[int, str]:
    """Name windows, by place: the compiler numbers them in the order of the kernel's parameters."""
    by_number: dict[int, str] = {}
    windows = [(at, match) for at, buffer in enumerate(buffers) if (match := _WINDOW.search(buffer.what))]
    for side in ("input", "output"):
        numbers = sorted({int(match["number"]) for _, match in windows if match["side"] == side})
        operands = [moved.operand for moved in traffic if moved.role == side]
        if len(numbers) == len(operands):
            names = dict(zip(numbers, operands, strict=True))
            by_number.update((at, names[int(match["number"])]) for at, match in windows if match["side"] == side)
    return by_number


def regions(run: SimulatedRun) -> tuple[Region, ...]:
    """Pick the stretches of straight code that take the longest, in the order of the program."""
    op = main_op(run)
    if op is None:
        return ()
    longest = sorted(op.regions, key=lambda region: -region.cycles)[:_MAX_REGIONS]
    return tuple(
        Region(
            op=op.name,
            name=f"{_loops(region.depth)}, "
            f"bundles {region.first_bundle:,} to {region.first_bundle + region.bundles - 1:,}",
            bundles=region.bundles,
            executions=region.executions,
            cycles=region.cycles,
            matrix_stall_cycles=region.matrix_stall_cycles,
            issued=region.issued,
            where=max(_lines(region).items(), key=lambda line: line[1])[0],
        )
        for region in sorted(longest, key=lambda region: region.first_bundle)
    )


def _loops(depth: int) -> str:
    return "once" if depth == 0 else "in the loop" if depth == 1 else f"in {depth} loops"


def line_times(run: SimulatedRun) -> tuple[LineTime, ...]:
    """Shares out the time of the longest operation among the lines of its source, the longest first."""
    op = main_op(run)
    if op is None or not any(region.lines for region in op.regions):
        return ()
    cycles, bundles = defaultdict[str, float](float), defaultdict[str, float](float)
    for region in op.regions:
        for line, count in _lines(region).items():
            bundles[line] += count
            cycles[line] += region.cycles * count / region.bundles
    return tuple(
        LineTime(
            op=op.name,
            where=line,
            text=_text(line),
            cycles=round(spent),
            share=spent / max(1, op.cycles),
            bundles=round(bundles[line], 1),
        )
        for line, spent in sorted(cycles.items(), key=lambda line_and_cycles: -line_and_cycles[1])
    )


def _lines(region: RegionRun) -> dict[str, float]:
    """Return the bundles of a region by source line; "" collects bundles without a line."""
    return {**region.lines, "": max(0.0, region.bundles - sum(region.lines.values()))}


def _text(line: str) -> str:
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def chip_limits(chip: Chip, dtype: str) -> ChipLimits:
    """State the limits of one device for products of `dtype`; bfloat16's where the chip does not multiply it."""
    dtype = dtype if dtype in chip.dtypes else "bfloat16"
    return ChipLimits(
        dtype=dtype,
        peak_flops_per_s=chip.peak_ops_per_s(dtype),
        hbm_bytes_per_s=chip.hbm_bytes_per_s,
        simulated_hbm_bytes_per_s=chip.machine.hbm_bytes_per_s,
    )
