"""The VMEM that a kernel needs, buffer by buffer, estimated before it is compiled.

Windows and scratch memory are counted as the compiler counts them, to the byte. What the compiler adds for spilled
vector registers is not known before; `spilled_bytes` is a rough guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from systolic.analysis.calls import KernelCall, Operand
from systolic.analysis.layout import (
    ALLOCATION_BYTES,
    REGISTER_BYTES,
    SUBLANES,
    array_tile_rows,
    element_bits,
    padded_bytes,
)
from systolic.analysis.step_walk import overwritten_each_step
from systolic.analysis.windows import window_copies
from systolic.chips import Chip
from systolic.compat.jaxprs import equations
from systolic.schedule import LANES

_SUMS_IN_REGISTERS = 51  # of a core's 64 vector registers: the others hold operands


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedBuffer:
    """A buffer that a kernel keeps in VMEM. `name` is the kernel's parameter."""

    name: str
    kind: Literal["window", "scratch"]
    copies: int
    size_bytes: int  # of all copies, padded to whole tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemEstimate:
    """The windows and the scratch memory of a kernel, and its VMEM limit."""

    buffers: tuple[EstimatedBuffer, ...]
    limit_bytes: int

    @property
    def total_bytes(self) -> int:
        """All buffers together."""
        return sum(buffer.size_bytes for buffer in self.buffers)


def vmem_estimate(call: KernelCall, chip: Chip) -> VmemEstimate:
    """Estimate the VMEM that a kernel uses on a chip, without arrays that XLA may keep there around the call."""
    windows = [_window(call, operand) for operand in call.of("input", "output") if operand.memory == "vmem"]
    dropped = overwritten_each_step(call)
    scratch = [
        EstimatedBuffer(
            name=operand.name,
            kind="scratch",
            copies=1,
            size_bytes=_allocated(_scratch_bytes(operand)),
        )
        for at, operand in enumerate(call.operands)
        if operand.role == "scratch" and operand.memory == "vmem" and at not in dropped
    ]
    requested_bytes = chip.scoped_vmem_bytes if call.vmem_limit_bytes is None else call.vmem_limit_bytes
    return VmemEstimate(buffers=(*windows, *scratch), limit_bytes=min(requested_bytes, chip.usable_vmem_bytes_per_core))


def _scratch_bytes(operand: Operand) -> int:
    """Count a scratch buffer's bytes. Windows pack elements of four bits; scratch has a byte for each."""
    return padded_bytes(operand.shape, operand.dtype) * max(8 // element_bits(operand.dtype), 1)


def _window(call: KernelCall, operand: Operand) -> EstimatedBuffer:
    rows = array_tile_rows(operand.shape[-2], operand.dtype) if len(operand.shape) > 1 else None
    copies = window_copies(call, operand)
    size_bytes = copies * padded_bytes(operand.block, operand.dtype, tile_rows=rows)
    return EstimatedBuffer(name=operand.name, kind="window", copies=copies, size_bytes=_allocated(size_bytes))


def _allocated(size_bytes: int) -> int:
    return -(-size_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES


def spilled_bytes(call: KernelCall) -> int:
    """Guess the VMEM for spilled registers: the registers of the largest dot's result, less 51.

    If the result of a dot is added to something, its sums use the 64 vector registers, and all but about 51 of them are
    spilled to VMEM. Otherwise other registers are spilled, by no simple rule. The guess only decides how much VMEM
    tiles may use before they are compiled, so it assumes the same for every dot.
    """
    results = [
        equation.outvars[0].aval for equation in equations(call.body) if equation.primitive.name == "dot_general"
    ]
    registers = [
        math.ceil(aval.shape[0] / SUBLANES) * math.ceil(aval.shape[1] / LANES)
        for aval in results
        if len(aval.shape) == 2
    ]
    return max(0, max(registers, default=0) - _SUMS_IN_REGISTERS) * REGISTER_BYTES
