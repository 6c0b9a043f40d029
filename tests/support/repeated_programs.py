"""Parts of programs that call an operation again and again."""

from __future__ import annotations

from dataclasses import replace

from systolic.chips import Chip, chip

TIMES = 7
POP = "%v2_v2 = vpop.f32.mrf.mxu0 %7"
MATMUL = ("%7 = vmatmul.bf16.gmra.mxu0 %v1_v1", POP, POP)
ROUNDS = (*MATMUL, *MATMUL)
BARRIER = ("%v1_v1 = vmov 77", "%7 = vpush.ccrf %v1_v1", "%v2_v2 = vpop.ccrf")  # of two cores
V5P = chip("v5p")


def copied(size: int | str, flag: str = "[#allocation8]") -> tuple[str, ...]:
    """A copy, a wait for it, and its flag set back."""
    return (
        f"%7 = dma.hbm_to_vmem %s91_s91, {size}, %s92_s92, {flag}",
        f"%8 = dma.done.wait {flag}, {size}",
        f"%s8_s8 = ssub.s32 0, {size}",
        f"%9 = vsyncadd {flag}, %s8_s8",
    )


def in_whole_cycles(on: Chip) -> Chip:
    """Return a chip whose HBM carries 16 granules of 32 bytes a cycle."""
    return replace(on, machine=replace(on.machine, hbm_bytes_per_s=512 * on.machine.clock_hz))


EXACT_V5P = in_whole_cycles(V5P)
