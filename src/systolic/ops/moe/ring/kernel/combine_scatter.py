"""The weighted sum of each token's rows, summed over the devices of a ring; each device gets its own tokens' sums.

    out[t] = Σ over devices, j of weights[t, j] · results[row of choice j of t]

The kernel adds up one piece of tokens after another as `combine` does, and what has arrived for that piece from the
neighbor, and sends it on. A sum travels in the dtype of the result; a device adds in float32 and rounds what it passes
on. The order of pieces is a table from `ScatterSchedule`: the opposite device's first, its own last. Each piece
has a place of its own in VMEM in which it arrives, so no device has to signal that a place is free.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.packed_rows import PackedRows, in_tiles
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.moe.kernel.combine import add_up, fetch_rows, wait_for_rows
from systolic.ops.moe.ring.schedule import STAGES, Field, ScatterSchedule
from systolic.ops.moe.schedule import SUMMED_TOKENS, CombineSpec
from systolic.schedule.legality import LANES


class _Refs(NamedTuple):
    table: Any  # int32 [steps, Field.COUNT] in SMEM
    ring: Any  # int32 [devices] in SMEM: axis indices round the ring
    runs: Any  # int32 [1, Run.COUNT, experts] in SMEM, of this step
    next_runs: Any  # of the next step
    codes: Any  # int32 [1, 1, piece tokens · k] in SMEM: `row_codes` of the rows of each choice
    weights: Any  # float32, the same
    results: Any  # [tiles, registers, 8, 128] in HBM
    out: Any  # [piece tokens, d]
    rows: Any  # a buffer of `PackedRows`
    sums: Any  # float32 [2 · registers · 8, 128]: of 16 tokens, in tiles of eight
    arrivals: Any  # [arrivals + 1, piece tokens, d], the last of them zeros
    stages: Any  # [STAGES, piece tokens, d]
    rows_sem: Any
    recv_sem: Any  # [arrivals]
    send_sem: Any  # [STAGES]


def combine_scattered(
    results: Shaped[Array, "rows d"],
    runs: Int[Array, "blocks fields experts"],
    codes: Int[Array, "blocks 1 choices"],
    weights: Float[Array, "blocks 1 choices"],
    table: Int[Array, "steps fields"],
    ring: Int[Array, " devices"],
    *,
    axis_name: str,
    collective_id: int,
    spec: CombineSpec,
    schedule: ScatterSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "own_tokens d"]:
    """Return the sums of this device's tokens; operands are as for `combine_rows`, for all devices' tokens."""
    d = results.shape[1]
    combine, steps = schedule.combine, table.shape[0]
    packed = combine.packed_rows(spec, bool(interpret))
    dtype_out = jnp.dtype(spec.dtype_out)

    def scalars(array: Array, steps_ahead: int = 0) -> pl.BlockSpec:
        def block(step: Any, table: Any, ring: Any) -> Any:
            return table[jnp.minimum(step + steps_ahead, steps - 1), Field.BLOCK], 0, 0

        return pl.BlockSpec((1, *array.shape[1:]), block, memory_space=pltpu.SMEM)

    piece = (combine.tokens, d)
    return pl.pallas_call(
        functools.partial(_kernel, axis_name, spec, schedule, packed),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(steps,),
            in_specs=[
                scalars(runs),
                scalars(runs, steps_ahead=1),
                scalars(codes),
                scalars(weights),
                pl.BlockSpec(memory_space=pltpu.HBM),
            ],
            out_specs=pl.BlockSpec(piece, lambda step, table, ring: (table[step, Field.OWN], 0)),
            scratch_shapes=[
                packed.scratch,
                pltpu.VMEM((SUMMED_TOKENS * d // LANES, LANES), jnp.float32),
                pltpu.VMEM((schedule.arrivals + 1, *piece), dtype_out),
                pltpu.VMEM((STAGES, *piece), dtype_out),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA((schedule.arrivals,)),
                pltpu.SemaphoreType.DMA((STAGES,)),
            ],
        ),
        out_shape=shape_with_mesh_axes((spec.tokens // schedule.devices, d), dtype_out, [results, weights]),
        cost_estimate=pl.CostEstimate(flops=spec.flops, transcendentals=0, bytes_accessed=spec.least_hbm_bytes),
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_combine_scatter_{spec.dtype}_{spec.tokens}_{spec.top_k}_{d}",
    )(table, ring, runs, runs, codes, weights, in_tiles(results, interpret))


def _kernel(axis_name: str, spec: CombineSpec, schedule: ScatterSchedule, packed: PackedRows, *refs: Any) -> None:
    step, refs = pl.program_id(0), _Refs(*refs)
    steps, nothing = refs.table.shape[0], schedule.arrivals
    slot, stage = lax.rem(step, 2), lax.rem(step, STAGES)
    walk = Walk(axis_name, refs.ring)

    def sent(step: Any, direction: int) -> Any:
        stage, place = lax.rem(step, STAGES), jnp.maximum(refs.table[step, Field.SENT], 0)
        target = refs.arrivals.at[place]
        return walk.copy_on(refs.stages.at[stage], target, refs.send_sem.at[stage], refs.recv_sem.at[place], direction)

    def end_of_sending(step: Any) -> None:
        """Wait until a step's stage is free again; all sums are equally long."""
        pl.when(refs.table[step, Field.SENT] >= 0)(lambda: sent(step, 0).wait_send())

    @pl.when(step == 0)
    def _first() -> None:
        packed.zero(refs.rows, packed.tiles - 1)
        refs.arrivals[nothing] = jnp.zeros(refs.arrivals.shape[1:], refs.arrivals.dtype)
        fetch_rows(refs.runs, pl.ds(0, packed.registers), slot, packed, refs)
        walk.barrier()

    @pl.when(step + 1 < steps)
    def _next() -> None:
        fetch_rows(refs.next_runs, pl.ds(0, packed.registers), 1 - slot, packed, refs)

    pl.when(step >= STAGES)(lambda: end_of_sending(step - STAGES))
    wait_for_rows(slot, spec, packed, refs)
    arrived = [refs.table[step, Field.ARRIVED + way] for way in DIRECTIONS]
    for place in arrived:

        @pl.when(place < nothing)
        def _arrived(place: Any = place) -> None:
            copy = walk.copy_on(
                refs.stages.at[0], refs.arrivals.at[place], refs.send_sem.at[0], refs.recv_sem.at[place], 0
            )
            copy.wait_recv()

    def store(rows: Any, columns: slice, sums: Array) -> None:
        for place in arrived:
            sums += refs.arrivals[place, rows, columns].astype(jnp.float32)
        refs.stages[stage, rows, columns] = sums.astype(refs.stages.dtype)

    add_up(schedule.combine.tokens, slot, spec, packed, refs, store)
    place, way = refs.table[step, Field.SENT], refs.table[step, Field.WAY]
    for direction in DIRECTIONS:
        pl.when((place >= 0) & (way == direction))(lambda direction=direction: sent(step, direction).start())

    @pl.when(place < 0)
    def _own() -> None:
        refs.out[...] = refs.stages[stage]

    @pl.when(step == steps - 1)
    def _end() -> None:
        for last in range(max(steps - STAGES, 0), steps):
            end_of_sending(last)
