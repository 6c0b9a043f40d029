"""Results of experts added up for each token and sent round a ring of devices, while the next columns are multiplied.

    out[t] = Σ over devices, rows r of t: weight[r] · (hidden[r] @ down[expert of r])

The steps go over tiles of columns, and over experts: the products of an expert's rows are added, in float32 and row by
row, to the sums of all tokens in VMEM. The sums of a tile are complete after its last expert, and are sent while the
next tile's are made, in the order and with the rounding of `combine_scatter`. No result of an expert is in HBM.
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
from systolic.kernels.launch import from_hbm
from systolic.ops.collective.kernel.walk import Walk
from systolic.ops.moe.kernel.summed_products import Block, SummedProducts, summed_scratch
from systolic.ops.moe.ring.kernel.sums import Sends
from systolic.ops.moe.ring.products import SUM_STAGES, ScatterProductsSchedule
from systolic.ops.moe.ring.schedule import WAYS


class _Refs(NamedTuple):
    ring: Any  # int32 [devices] in SMEM: axis indices round the ring
    table: Any  # int32 [sends, Field.COUNT] in SMEM: the steps of `ScatterSchedule`
    experts: Any  # int32 [Expert.COUNT, experts] in SMEM
    words: Any  # int32 [choices] in SMEM: where the sum of the token of each row begins
    factors: Any  # float32 [choices] in SMEM: weights of rows
    hidden: Any  # [rows, f] in HBM
    down: Any  # [experts, f, d] in HBM
    scales: Any  # float32 [experts, blocks of f, d or d / 128] in HBM, of codes
    out: Any  # [own tokens, d] in HBM
    rows: Any  # [places + 1, block rows, f], the last of them for an expert's rows after its first block
    weights: Any  # [slots, 1, f, columns]
    tile_scales: Any  # float32 [slots, blocks of f, columns or d / 128]
    column_scales: Any  # float32 [blocks of f, columns]: scales of each column, if columns share them
    products: tuple[Any, Any]  # float32 [words, 128]: of two blocks, in tiles of eight rows
    sums: Any  # float32 [2, words, 128]: of all tokens, in tiles of eight, and eight of no token
    arrivals: Any  # [tiles · arrivals + 1, piece tokens, columns], the last of them zeros
    stages: Any  # [SUM_STAGES, piece tokens, columns]
    slots_sem: Any  # [slots]
    block_sem: Any
    recv_sem: Any  # [tiles · arrivals]
    send_sem: Any  # [SUM_STAGES]
    block: Any  # int32 [Block.COUNT] in SMEM: the last block


def scatter_products(
    hidden: Shaped[Array, "rows f"],
    down: Shaped[Array, "experts f d"],
    scales: Float[Array, "experts blocks columns"] | None,
    experts: Int[Array, "fields experts"],
    words: Int[Array, " choices"],
    factors: Float[Array, " choices"],
    table: Int[Array, "sends fields"],
    ring: Int[Array, " devices"],
    *,
    axis_name: str,
    collective_id: int,
    repeats: bool,
    schedule: ScatterProductsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "own_tokens d"]:
    """Return the sums of this device's tokens.

    Args:
      repeats: True if a token may have chosen an expert more than once, in consecutive rows.
    """
    dtype, (count, f, d) = hidden.dtype, down.shape
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    operands = ring, table, experts, words, factors
    own_tokens = schedule.tokens // ring.shape[0]
    piece = (schedule.scatter.combine.tokens, schedule.columns)
    arrivals = schedule.tiles * schedule.scatter.arrivals
    arrays = [array if interpret or array is None else from_hbm(array) for array in (hidden, down, scales)]
    dtypes = "_".join(dict.fromkeys((dtype.name, down.dtype.name)))
    return pl.pallas_call(
        functools.partial(_kernel, axis_name, schedule, repeats),
        in_specs=[*(scalars for _ in operands), *(None if array is None else hbm for array in arrays)],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((own_tokens, d), dtype, [hidden, down]),
        scratch_shapes=[
            *summed_scratch(schedule, f),
            pltpu.VMEM((arrivals + 1, *piece), dtype),
            pltpu.VMEM((SUM_STAGES, *piece), dtype),
            pltpu.SemaphoreType.DMA((schedule.slots,)),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((arrivals,)),
            pltpu.SemaphoreType.DMA((SUM_STAGES,)),
            pltpu.SMEM((Block.COUNT,), jnp.int32),
        ],
        cost_estimate=pl.CostEstimate(
            flops=2 * schedule.mean_rows * f * d, transcendentals=0, bytes_accessed=count * schedule.down.bytes(f, d)
        ),
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id,
            vmem_limit_bytes=vmem_limit_bytes,
            disable_bounds_checks=True,  # a fifth of a step's scalar code; all places are from tables
        ),
        interpret=interpret,
        name=f"systolic_scatter_products_{dtypes}_{count}_{schedule.tokens}_{f}_{d}",
    )(*operands, *arrays)


def _kernel(axis_name: str, schedule: ScatterProductsSchedule, repeats: bool, *refs: Any) -> None:
    refs = _Refs(*refs)
    walk = Walk(axis_name, refs.ring)
    products, sends = SummedProducts(refs, schedule, repeats), Sends(refs, schedule, walk)
    experts, steps = refs.experts.shape[1], schedule.tiles * refs.experts.shape[1]
    inputs = products.inputs
    inputs.fill(steps)
    refs.arrivals[refs.arrivals.shape[0] - 1] = jnp.zeros(refs.arrivals.shape[1:], refs.arrivals.dtype)
    products.clear()
    walk.barrier()
    count = refs.table.shape[0]

    def step(number: Any, carry: None) -> None:
        tile, expert = lax.div(number, jnp.int32(experts)), lax.rem(number, jnp.int32(experts))

        inputs.fetch_next(number, steps)
        inputs.wait(number)
        products.add(number, tile, expert)

        @pl.when(tile > 0)
        def _send() -> None:
            # The first block of a tile adds up the last one of the tile before. Before the first sums of a tile are
            # added, the sums of two tiles before have been sent.
            pl.when(expert == 0)(lambda: products.add_up_before(tile))
            first, end = (_share(sends.head, count, at, experts) for at in (expert - 1, expert))
            before = (tile - 1) * count
            pl.loop(before + jnp.where(expert > 0, first, 0), before + end)(sends.send)

        return carry

    lax.fori_loop(0, steps, step, None)
    products.add_up()
    pl.loop((schedule.tiles - 1) * count, sends.count)(sends.send)
    pl.loop(max(sends.count - SUM_STAGES, 0), sends.count)(sends.end)


def _share(head: int, count: int, expert: Any, experts: int) -> Any:
    """Return the number of sends up to an expert's step: `head` in the first, the others in equal shares of pairs.

    While the first are on their way, none are made: the next wait for those of the neighbors.
    """
    if experts == 1:
        return count
    pairs = (count - head) // WAYS
    idle = max(min(experts * head // count - 1, experts // 2 - 1), 0)
    return head + lax.div(jnp.maximum(expert - idle, 0) * pairs, jnp.int32(experts - 1 - idle)) * WAYS
