"""What a kernel keeps in VMEM and SMEM, buffer by buffer, as the compiler counts it, and whether it fits.

The compiler refuses a kernel whose windows, scratch and spilled registers together are above its limit, by one byte: so
it was for limits from 8 to 256 MiB on every chip. The limit is `vmem_limit_bytes`, else the chip's default, and never
more than the chip has. How many registers are spilled only the compiler knows: where they make the difference, the
finding is its refusal. Where a whole array fits into what the limit leaves of VMEM, XLA may put it there ahead of the
call; then its window falls away. That is decided by XLA's own costs and is not foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.analysis.calls import KernelCall, Operand
from systolic.analysis.windows import copies
from systolic.checking.finding import Finding
from systolic.checking.folding import set_each_step
from systolic.checking.layout import ALLOCATION_BYTES, array_tile_rows, padded_bytes, scalar_bytes
from systolic.chips import Chip
from systolic.schedule.legality import MIB

PartKind = Literal["window", "scratch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemPart:
    """Something that a kernel keeps in VMEM. `name` is the kernel's parameter."""

    name: str
    kind: PartKind
    copies: int
    size_bytes: int  # all copies together, padded to whole tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemEstimate:
    """The windows and scratch that a kernel keeps in VMEM, and what it may keep there.

    The compiler's account is the same for these, and adds registers that it spills.
    """

    parts: tuple[VmemPart, ...]
    limit_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(part.size_bytes for part in self.parts)


def vmem_estimate(call: KernelCall, chip: Chip) -> VmemEstimate:
    """What a kernel keeps in VMEM on a chip. Arrays that XLA may hold in VMEM around the call are not in it."""
    parts = [_window(call, operand) for operand in call.of("input", "output") if operand.memory == "vmem"]
    dropped = set_each_step(call)
    parts += [
        VmemPart(
            name=operand.name,
            kind="scratch",
            copies=1,
            size_bytes=_allocated(padded_bytes(operand.shape, operand.dtype)),
        )
        for operand, variable in zip(call.operands, call.body.invars, strict=True)
        if operand.role == "scratch" and operand.memory == "vmem" and variable not in dropped
    ]
    return VmemEstimate(parts=tuple(parts), limit_bytes=vmem_limit_bytes(call, chip))


def vmem_limit_bytes(call: KernelCall, chip: Chip) -> int:
    """What the compiler lets a kernel use."""
    asked = chip.scoped_vmem_bytes if call.vmem_limit_bytes is None else call.vmem_limit_bytes
    return min(asked, chip.usable_vmem_bytes_per_core)


def memory_findings(call: KernelCall, chip: Chip) -> list[Finding]:
    """VMEM and SMEM that a kernel needs and does not get."""
    return [*_vmem(call, chip), *_smem(call, chip)]


def _window(call: KernelCall, operand: Operand) -> VmemPart:
    rows = array_tile_rows(operand.shape[-2], operand.dtype) if len(operand.shape) > 1 else None
    held = copies(call, operand)
    size_bytes = padded_bytes(operand.block, operand.dtype, tile_rows=rows)
    return VmemPart(name=operand.name, kind="window", copies=held, size_bytes=_allocated(held * size_bytes))


def _allocated(size_bytes: int) -> int:
    return -(-size_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES


def _vmem(call: KernelCall, chip: Chip) -> list[Finding]:
    estimate = vmem_estimate(call, chip)
    if estimate.total_bytes <= estimate.limit_bytes or 0 in call.grid:  # what has no steps is left out of the program
        return []
    parts = sorted(estimate.parts, key=lambda part: -part.size_bytes)
    listed = ", ".join(
        f"{part.name} {part.size_bytes / MIB:.2f}{f' ({part.copies} copies)' if part.copies > 1 else ''}"
        for part in parts
    )
    most = chip.usable_vmem_bytes_per_core
    said = "vmem_limit_bytes" if call.vmem_limit_bytes is not None else f"the default of a {chip.name}"
    fix = "use smaller blocks"
    if estimate.total_bytes <= most:
        raised = -(-estimate.total_bytes // MIB)
        fix += f", or vmem_limit_bytes={min(raised * MIB, most)} in pltpu.CompilerParams"
    return [
        Finding(
            rule="vmem",
            grade="error",
            value=f"it needs {estimate.total_bytes / MIB:.2f} MiB of VMEM: {listed}",
            limit=f"there are {estimate.limit_bytes / MIB:.2f} MiB ({said})",
            fix=fix,
            kernel=call.name,
            where=call.where,
            chip=chip.name,
        )
    ]


def _smem(call: KernelCall, chip: Chip) -> list[Finding]:
    held = {
        operand.name: copies(call, operand) * scalar_bytes(operand.block, operand.dtype)
        for operand in call.operands
        if operand.memory == "smem" or operand.role == "prefetch"
    }
    total = sum(held.values())
    if total <= chip.usable_smem_bytes_per_core:
        return []
    listed = ", ".join(f"{name} {size:,}" for name, size in sorted(held.items(), key=lambda each: -each[1]))
    return [
        Finding(
            rule="smem",
            grade="error",
            value=f"it needs {total:,} bytes of SMEM: {listed}",
            limit=f"there are {chip.usable_smem_bytes_per_core:,}",
            fix="use vectors (each row of a matrix takes a multiple of 128 scalars), or fewer scalars, such as one of "
            "each group in place of one of each step",
            kernel=call.name,
            where=call.where,
            chip=chip.name,
        )
    ]
