"""Bytes that a kernel moves over HBM, and the time that takes by arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.schedule.blocks import Block, operand_blocks
from systolic.schedule.config import KernelConfig
from systolic.spec import MatmulSpec, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes over HBM."""

    lhs_bytes: int
    rhs_bytes: int
    fused_bytes: int
    out_bytes: int

    @property
    def hbm_bytes(self) -> int:
        """All together, read and written."""
        return self.lhs_bytes + self.rhs_bytes + self.fused_bytes + self.out_bytes


def blocked_traffic(spec: MatmulSpec, config: KernelConfig) -> Traffic:
    """Bytes that the pipeline copies: a block is fetched when its index differs from the step before. Outputs once."""
    grid_m, grid_n, grid_k = config.tiles.grid(spec)
    counts = {"m": grid_m, "n": grid_n, "k": grid_k}

    def moved(along: set[str], matrix_bytes: int, matrices: int) -> int:
        blocks = math.prod(counts[dimension] for dimension in along)
        return _fetches(spec, config, along, matrices) * matrix_bytes // blocks

    def moved_of_fused(block: Block) -> int:
        if block.resident:
            return block.bytes
        along: set[str] = {name for name in block.along if name is not None}
        matrices = spec.matrices(block.applies_to) if len(along) == 2 else 1
        return block.bytes * _fetches(spec, config, along, matrices)

    _, _, *fused = operand_blocks(spec, config.tiles).present()
    return Traffic(
        lhs_bytes=moved({"m", "k"}, spec.lhs_bytes // spec.batch_lhs, spec.batch_lhs),
        rhs_bytes=moved({"k", "n"}, spec.rhs_bytes // spec.batch_rhs, spec.batch_rhs),
        fused_bytes=sum(map(moved_of_fused, fused)),
        out_bytes=spec.out_bytes,
    )


def _fetches(spec: MatmulSpec, config: KernelConfig, along: set[str], matrices: int) -> int:
    """How often a block is fetched of an array that lies along these dimensions: once for each round of the loops.

    From the outermost to the innermost one that changes its index; those inside that leave the block as it is.
    """
    grid_m, grid_n, grid_k = config.tiles.grid(spec)
    m, n = ("m", grid_m), ("n", grid_n)
    loops = [("batch", spec.batch), *((m, n) if config.grid_order == "m" else (n, m)), ("k", grid_k)]
    changing = along | ({"batch"} if matrices > 1 else set())
    depth = max((at + 1 for at, (name, count) in enumerate(loops) if name in changing and count > 1), default=0)
    return math.prod(count for _, count in loops[:depth])


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Seconds that copies take on one core's share of HBM."""

    count: float  # of copies that a step starts, on average
    first_s: float  # all blocks of the first step
    later_s: float  # the inputs of a step after it, on average
    store_s: float  # a block of every output
    last_store_s: float  # what is stored after the last product: a block, or only a subtile of it
    latency_s: float

    @classmethod
    def of(cls, spec: MatmulSpec, config: KernelConfig, chip: Chip, cores: int) -> Copies:
        """Of these blocks; `cores` share the steps."""
        tiles, machine = config.tiles, chip.machine
        grid_m, grid_n, grid_k = tiles.grid(spec)
        steps = spec.batch * grid_m * grid_n * grid_k
        bytes_per_s = machine.hbm_bytes_per_s / cores
        run_s = machine.hbm_run_cycles / machine.clock_hz
        traffic = blocked_traffic(spec, config)
        lhs, rhs, *fused = operand_blocks(spec, tiles).present()
        count, total_s = 1 / grid_k, traffic.fused_bytes / bytes_per_s
        first_s = sum(block.bytes for block in fused) / bytes_per_s
        for block, total_bytes in ((lhs, traffic.lhs_bytes), (rhs, traffic.rhs_bytes)):
            rows, columns = block.shape
            along, dtype, block_bytes = block.along[1], block.dtype, block.bytes
            width = getattr(spec, along)
            block_s = block_bytes / bytes_per_s + strided_runs(rows, columns, width, dtype) * run_s
            blocks = total_bytes / block_bytes
            # The first block comes in chunks along k, which cut its rows apart where those lie along k.
            parts = config.fill_chunks if along == "k" else 1
            first_block_s = (
                block_bytes / bytes_per_s + parts * strided_runs(rows, columns / parts, width, dtype) * run_s
            )
            first_s += first_block_s
            count += blocks / steps
            total_s += block_s * (blocks - 1) + first_block_s
        out_bytes = traffic.out_bytes / (spec.batch * grid_m * grid_n)
        tile_s = out_bytes / bytes_per_s + strided_runs(tiles.tile_m, tiles.tile_n, spec.n, spec.dtype_out) * run_s
        subtile_s = (
            out_bytes / config.subtiles / bytes_per_s
            + strided_runs(config.subtile_m, config.subtile_n, spec.n, spec.dtype_out) * run_s
        )
        return cls(
            count=count,
            first_s=first_s,
            later_s=max(0.0, total_s / cores - first_s) / max(1.0, steps / cores - 1),
            store_s=tile_s,
            last_store_s=subtile_s if config.pipeline == "manual" else tile_s,
            latency_s=machine.dma_latency_cycles / machine.clock_hz,
        )


def strided_runs(rows: int, columns: float, width: int, dtype: str) -> int:
    """Contiguous runs of a block in HBM, where matrices lie in tiles of eight rows, those of 8 bits of 32."""
    return 1 if columns >= width else math.ceil(rows / (32 if dtype_bytes(dtype) == 1 else 8))
