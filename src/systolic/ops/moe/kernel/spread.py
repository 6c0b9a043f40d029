"""Rows of tokens in the order of experts: `out[r] = x[token of row r]`.

All tokens are in VMEM, and a row there costs a few cycles where its copy from HBM would cost 60. The grid goes over
slabs of columns, and copies the next slab meanwhile, and over chunks of rows. Blocks of a chunk are put together
one after another, while those before are on their way to HBM. Rows after the last expert's are left as they are in HBM.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import from_hbm
from systolic.kernels.packed_rows import SUBLANES, PackedRows
from systolic.kernels.ring import Act
from systolic.ops.moe.schedule import BLOCK_SLOTS, CHUNK_BLOCKS, SpreadSchedule, SpreadSpec
from systolic.schedule.legality import LANES

_TILES_TOGETHER = 4  # of straight code: the addresses of one are computed while the other is copied


class _Refs(NamedTuple):
    expert_rows: Any  # int32 [1] in SMEM: number of rows of experts
    first_tiles: Any  # int32 [parts] in SMEM: where the parts of x are among all tokens
    codes: Any  # int32 [1, 1, chunk rows] in SMEM: `row_codes` of tokens
    parts: tuple[Any, ...]  # of x: [tiles, registers, 8, 128] in HBM
    out: Any  # the same, of rows, in HBM
    tokens: Any  # a buffer of `PackedRows`, of a slab
    rows: Any  # and another, of a few blocks
    tokens_sem: Any
    rows_sem: Any


def spread_rows(
    parts: Sequence[Shaped[Array, "part_tokens d"]],
    first_tiles: Int[Array, " parts"],
    codes: Int[Array, "chunks 1 rows"],
    expert_rows: Int[Array, " 1"],
    *,
    spec: SpreadSpec,
    schedule: SpreadSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "rows d"]:
    """Return the rows of tokens, which lie in several arrays; all numbers of rows are multiples of 8, d of 128."""
    registers = spec.d // LANES
    tokens, rows = (
        PackedRows(
            slots=slots,
            tiles=count // SUBLANES,
            registers=schedule.columns // LANES,
            dtype=spec.dtype,
            is_interpreted=bool(interpret),
        )
        for slots, count in ((schedule.slots, spec.tokens), (BLOCK_SLOTS, schedule.rows))
    )
    in_tiles = [
        part.reshape(part.shape[0] // SUBLANES, SUBLANES, registers, LANES).transpose(0, 2, 1, 3) for part in parts
    ]
    out = pl.pallas_call(
        functools.partial(_kernel, spec, schedule, tokens, rows, len(parts)),
        grid=(schedule.slabs, schedule.chunks),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM),
            pl.BlockSpec(memory_space=pltpu.SMEM),
            pl.BlockSpec((1, *codes.shape[1:]), lambda slab, chunk: (chunk, 0, 0), memory_space=pltpu.SMEM),
            *(pl.BlockSpec(memory_space=pltpu.HBM) for _ in parts),
        ],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        out_shape=shape_with_mesh_axes((spec.rows // SUBLANES, registers, SUBLANES, LANES), parts[0].dtype, parts),
        scratch_shapes=[
            tokens.scratch,
            rows.scratch,
            pltpu.SemaphoreType.DMA((schedule.slots,)),
            pltpu.SemaphoreType.DMA((BLOCK_SLOTS,)),
        ],
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=spec.least_hbm_bytes),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_spread_{spec.dtype}_{spec.tokens}_{spec.rows}_{spec.d}",
    )(expert_rows, first_tiles, codes, *(part if interpret else from_hbm(part) for part in in_tiles))
    return out.transpose(0, 2, 1, 3).reshape(spec.rows, spec.d)


def _kernel(
    spec: SpreadSpec, schedule: SpreadSchedule, tokens: PackedRows, rows: PackedRows, parts: int, *refs: Any
) -> None:
    slab, chunk = pl.program_id(0), pl.program_id(1)
    expert_rows, first_tiles, codes, *rest = refs
    refs = _Refs(expert_rows, first_tiles, codes, tuple(rest[:parts]), *rest[parts:])
    registers, block_tiles = tokens.registers, rows.tiles
    together = math.gcd(block_tiles, _TILES_TOGETHER)
    expert_tiles = lax.div(refs.expert_rows[0] + SUBLANES - 1, SUBLANES)

    def arrival(slab: Any, act: Act) -> None:
        slot = lax.rem(slab, schedule.slots)
        for part, x in enumerate(refs.parts):
            count = jnp.maximum(expert_tiles, 1) if spec.permutes else x.shape[0]
            target = tokens.in_tiles(refs.tokens).at[slot, pl.ds(refs.first_tiles[part], count)]
            source = x.at[pl.ds(0, count), pl.ds(slab * registers, registers)]
            act(pltpu.make_async_copy(source, target, refs.tokens_sem.at[slot]))

    def start(slab: Any) -> None:
        arrival(slab, lambda copy: copy.start())

    @pl.when(chunk == 0)
    def _next_slab() -> None:
        pl.when(slab == 0)(lambda: start(0))
        if schedule.slabs > 1:
            pl.when(slab + 1 < schedule.slabs)(lambda: start(slab + 1))
        arrival(slab, lambda copy: copy.wait())

    used_blocks = lax.div(expert_tiles + block_tiles - 1, block_tiles)

    def departure(step: Any) -> Any:
        block = lax.rem(step, jnp.maximum(used_blocks, 1))
        first, slot = block * block_tiles, lax.rem(step, BLOCK_SLOTS)
        count = jnp.minimum(block_tiles, expert_tiles - first)
        columns = pl.ds(lax.div(step, jnp.maximum(used_blocks, 1)) * registers, registers)
        source = rows.in_tiles(refs.rows).at[slot, pl.ds(0, count)]
        return pltpu.make_async_copy(source, refs.out.at[pl.ds(first, count), columns], refs.rows_sem.at[slot])

    first_block = chunk * CHUNK_BLOCKS

    def block(number: Any, carry: None) -> None:
        step = slab * used_blocks + first_block + number
        slot = lax.rem(step, BLOCK_SLOTS)
        pl.when(step >= BLOCK_SLOTS)(lambda: departure(step - BLOCK_SLOTS).wait())

        def copy(group: Any, carry: None) -> None:
            for tile in range(together):
                at = group * together + tile
                code = (number * block_tiles + at) * SUBLANES
                codes = [refs.codes[0, 0, code + row] for row in range(SUBLANES)]
                tokens.copy(refs.tokens, lax.rem(slab, schedule.slots), codes, rows, refs.rows, slot, at)
            return carry

        tiles = jnp.minimum(block_tiles, expert_tiles - (first_block + number) * block_tiles)
        # Tiles after the last row are of any rows, and are not sent.
        lax.fori_loop(0, lax.div(tiles + together - 1, together), copy, None)
        departure(step).start()
        return carry

    lax.fori_loop(0, jnp.clip(used_blocks - first_block, 0, CHUNK_BLOCKS), block, None)

    @pl.when((slab == schedule.slabs - 1) & (chunk == schedule.chunks - 1))
    def _end() -> None:
        steps = schedule.slabs * used_blocks
        for last in range(BLOCK_SLOTS, 0, -1):
            pl.when(steps >= last)(lambda last=last: departure(steps - last).wait())
