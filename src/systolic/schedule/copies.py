"""Bytes that a kernel moves over HBM, and the time that takes by arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.schedule.config import SIDES, KernelConfig, block_shape, dimensions, extra_block, is_resident
from systolic.spec import MatmulSpec, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes over HBM."""

    lhs_bytes: int
    rhs_bytes: int
    extra_bytes: int
    out_bytes: int

    @property
    def hbm_bytes(self) -> int:
        """All together, read and written."""
        return self.lhs_bytes + self.rhs_bytes + self.extra_bytes + self.out_bytes


def blocked_traffic(spec: MatmulSpec, config: KernelConfig) -> Traffic:
    """Bytes that the pipeline copies: a block is fetched when its index differs from the step before. Outputs once."""
    tiles = config.tiles
    grid_m, grid_n, grid_k = tiles.grid(spec)
    counts: dict[str, int] = {"m": grid_m, "n": grid_n, "k": grid_k}

    def moved(along: set[str], matrix_bytes: int, matrices: int) -> int:
        blocks = math.prod(counts[dimension] for dimension in along)
        return _fetches(spec, config, along, matrices) * matrix_bytes // blocks

    extra = 0
    for one in spec.fusion.extras:
        rows, columns = extra_block(spec, tiles, one)
        block_bytes = rows * columns * dtype_bytes(one.dtype)
        if is_resident(spec, tiles, one):
            extra += block_bytes
            continue
        names = dimensions(spec, one.beside)
        along: set[str] = {name for name, there in zip(names, (one.rows, one.columns), strict=True) if there}
        of_each = {"lhs": spec.batch_lhs, "rhs": spec.batch_rhs, "out": spec.batch}[one.beside]
        extra += block_bytes * _fetches(spec, config, along, of_each if one.rows and one.columns else 1)
    return Traffic(
        lhs_bytes=moved({"m", "k"}, spec.lhs_bytes // spec.batch_lhs, spec.batch_lhs),
        rhs_bytes=moved({"k", "n"}, spec.rhs_bytes // spec.batch_rhs, spec.batch_rhs),
        extra_bytes=extra,
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
        beside = (math.prod(extra_block(spec, tiles, one)) * dtype_bytes(one.dtype) for one in spec.fusion.extras)
        count, total_s, first_s = 1 / grid_k, traffic.extra_bytes / bytes_per_s, sum(beside) / bytes_per_s
        for side, total_bytes in zip(SIDES, (traffic.lhs_bytes, traffic.rhs_bytes), strict=True):
            rows, columns = block_shape(spec, tiles, side)
            along = dimensions(spec, side)[1]
            width = getattr(spec, along)
            dtype = spec.dtype_lhs if side == "lhs" else spec.dtype_rhs
            block_bytes = rows * columns * dtype_bytes(dtype)
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
