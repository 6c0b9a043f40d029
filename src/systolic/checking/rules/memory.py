"""Rules on VMEM and SMEM: whether what a kernel keeps there fits.

The compiler refuses a kernel whose windows, scratch memory and spilled registers together exceed its limit by one byte;
this held for limits from 8 to 256 MiB on every chip. The limit is `vmem_limit_bytes`, else the chip's default, and
never more than the chip has. Where the spilled registers make the difference, the finding is the compiler's refusal.
Where a whole array fits into what the limit leaves of VMEM, XLA may put it there before the call, and then it needs no
window. XLA decides that by its own costs; it is not predicted here.
"""

from __future__ import annotations

from systolic.analysis import KernelCall, scalar_bytes, vmem_estimate, window_copies
from systolic.checking.finding import Finding, call_finding
from systolic.chips import Chip
from systolic.schedule import MIB


def memory_findings(call: KernelCall, chip: Chip) -> list[Finding]:
    """Find kernels that need more VMEM or SMEM than they get."""
    return [*_vmem(call, chip), *_smem(call, chip)]


def _vmem(call: KernelCall, chip: Chip) -> list[Finding]:
    estimate = vmem_estimate(call, chip)
    if estimate.total_bytes <= estimate.limit_bytes or 0 in call.grid:  # a kernel of no steps is not compiled
        return []
    listed = ", ".join(
        f"{buffer.name} {buffer.size_bytes / MIB:.2f}{f' ({buffer.copies} copies)' if buffer.copies > 1 else ''}"
        for buffer in sorted(estimate.buffers, key=lambda buffer: -buffer.size_bytes)
    )
    limit_bytes = chip.usable_vmem_bytes_per_core
    limit_name = "vmem_limit_bytes" if call.vmem_limit_bytes is not None else f"the default of a {chip.name}"
    fix = "use smaller blocks"
    if estimate.total_bytes <= limit_bytes:
        raised = -(-estimate.total_bytes // MIB)
        fix += f", or vmem_limit_bytes={min(raised * MIB, limit_bytes)} in pltpu.CompilerParams"
    return [
        call_finding(
            call,
            "vmem",
            value=f"it needs {estimate.total_bytes / MIB:.2f} MiB of VMEM: {listed}",
            limit=f"there are {estimate.limit_bytes / MIB:.2f} MiB ({limit_name})",
            fix=fix,
            chip=chip.name,
        )
    ]


def _smem(call: KernelCall, chip: Chip) -> list[Finding]:
    held = {
        operand.name: window_copies(call, operand) * scalar_bytes(operand.block, operand.dtype)
        for operand in call.operands
        if operand.memory == "smem" or operand.role == "prefetch"
    }
    total = sum(held.values())
    if total <= chip.usable_smem_bytes_per_core:
        return []
    listed = ", ".join(f"{name} {size:,}" for name, size in sorted(held.items(), key=lambda item: -item[1]))
    return [
        call_finding(
            call,
            "smem",
            value=f"it needs {total:,} bytes of SMEM: {listed}",
            limit=f"there are {chip.usable_smem_bytes_per_core:,}",
            fix="use vectors (each row of a matrix takes a multiple of 128 scalars), or fewer scalars, such as one of "
            "each group in place of one of each step",
            chip=chip.name,
        )
    ]
