"""Results of experts added up for each token in VMEM, tile of columns by tile.

    out[t] = Σ over rows r of t: weight[r] · (hidden[r] @ down[expert of r])

The steps go over tiles of columns, and over experts: the products of an expert's rows are added, in float32 and row by
row, to the sums of all tokens. The sums of a tile are stored while the next tile's are made. No result of an expert is
in HBM.
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
from systolic.kernels.ring import Act, Ring
from systolic.ops.moe.blocks import ExpertsSpec
from systolic.ops.moe.fused.schedule import SUM_STAGES, FusedSumsSchedule
from systolic.ops.moe.kernel.rounded_sums import round_sums
from systolic.ops.moe.kernel.summed_products import Block, SummedProducts, summed_scratch


class _Refs(NamedTuple):
    experts: Any  # int32 [Expert.COUNT, experts] in SMEM
    words: Any  # int32 [choices] in SMEM: where the sum of the token of each row begins
    factors: Any  # float32 [choices] in SMEM: weights of rows
    hidden: Any  # [rows, f] in HBM
    down: Any  # [experts, f, d] in HBM
    scales: Any  # float32 [experts, blocks of f, d or d / 128] in HBM, of codes
    out: Any  # [tokens, d] in HBM
    rows: Any  # [places + 1, block rows, f], the last of them for an expert's rows after its first block
    weights: Any  # [slots, 1, f, columns]
    tile_scales: Any  # float32 [slots, blocks of f, columns or d / 128]
    column_scales: Any  # float32 [blocks of f, columns]: scales of each column, if columns share them
    products: tuple[Any, Any]  # float32 [words, 128]: of two blocks, in tiles of eight rows
    sums: Any  # float32 [2, words, 128]: of all tokens, in tiles of eight, and eight of no token
    stages: Any  # [SUM_STAGES, piece, columns]
    slots_sem: Any  # [slots]
    block_sem: Any
    stages_sem: Any  # [SUM_STAGES]
    block: Any  # int32 [Block.COUNT] in SMEM: the last block


def fused_sums(
    hidden: Shaped[Array, "rows f"],
    down: Shaped[Array, "experts f d"],
    scales: Float[Array, "experts blocks columns"] | None,
    experts: Int[Array, "fields experts"],
    words: Int[Array, " choices"],
    factors: Float[Array, " choices"],
    *,
    repeats: bool,
    spec: ExpertsSpec,
    schedule: FusedSumsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "tokens d"]:
    """Return the sums of all tokens.

    Args:
      repeats: True if a token may have chosen an expert more than once, in consecutive rows.
    """
    dtype, (count, f, d) = hidden.dtype, down.shape
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    operands = experts, words, factors
    arrays = [array if interpret or array is None else from_hbm(array) for array in (hidden, down, scales)]
    dtypes = "_".join(dict.fromkeys((dtype.name, down.dtype.name)))
    return pl.pallas_call(
        functools.partial(_kernel, schedule, repeats),
        in_specs=[*(scalars for _ in operands), *(None if array is None else hbm for array in arrays)],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((schedule.tokens, d), dtype, [hidden, down]),
        scratch_shapes=[
            *summed_scratch(schedule, f),
            pltpu.VMEM((SUM_STAGES, schedule.piece, schedule.columns), dtype),
            pltpu.SemaphoreType.DMA((schedule.slots,)),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((SUM_STAGES,)),
            pltpu.SMEM((Block.COUNT,), jnp.int32),
        ],
        cost_estimate=pl.CostEstimate(
            flops=2 * spec.mean_rows * f * d, transcendentals=0, bytes_accessed=count * schedule.down.bytes(f, d)
        ),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=vmem_limit_bytes,
            disable_bounds_checks=True,  # as in `scatter_products`
        ),
        interpret=interpret,
        name=f"systolic_fused_sums_{dtypes}_{count}_{schedule.tokens}_{f}_{d}",
    )(*operands, *arrays)


def _kernel(schedule: FusedSumsSchedule, repeats: bool, *arrays: Any) -> None:
    refs = _Refs(*arrays)
    products, stores = SummedProducts(refs, schedule, repeats), _stores(refs, schedule)
    experts, steps = refs.experts.shape[1], schedule.tiles * refs.experts.shape[1]
    pieces = schedule.tokens // schedule.piece
    inputs = products.inputs
    inputs.fill(steps)
    products.clear()

    def store(number: Any) -> None:
        """Round the sums of a piece, and store them."""
        stores.reserve(number)
        tile, piece = lax.div(number, jnp.int32(pieces)), lax.rem(number, jnp.int32(pieces))
        round_sums(refs.sums.at[lax.rem(tile, 2)], piece * schedule.piece, refs.stages.at[stores.slot(number)])
        stores.start(number)

    def step(number: Any, carry: None) -> None:
        tile, expert = lax.div(number, jnp.int32(experts)), lax.rem(number, jnp.int32(experts))
        inputs.fetch_next(number, steps)
        inputs.wait(number)
        products.add(number, tile, expert)

        @pl.when(tile > 0)
        def _store() -> None:
            # As in `scatter_products`: sums of two tiles before are stored before the first of a tile are added.
            pl.when(expert == 0)(lambda: products.add_up_before(tile))
            begin, end = (lax.div(at * pieces, jnp.int32(experts)) for at in (expert, expert + 1))
            before = (tile - 1) * pieces
            pl.loop(before + begin, before + end)(store)

        return carry

    lax.fori_loop(0, steps, step, None)
    products.add_up()
    pl.loop((schedule.tiles - 1) * pieces, schedule.tiles * pieces)(store)
    stores.drain(schedule.tiles * pieces)


def _stores(refs: _Refs, schedule: FusedSumsSchedule) -> Ring:
    """Return the copies of pieces of sums to HBM."""
    pieces, tokens, columns = schedule.tokens // schedule.piece, schedule.piece, schedule.columns

    def copies(number: Any, act: Act) -> None:
        tile, piece = lax.div(number, jnp.int32(pieces)), lax.rem(number, jnp.int32(pieces))
        rows = pl.ds(pl.multiple_of(piece * tokens, tokens), tokens)
        target = refs.out.at[rows, pl.ds(pl.multiple_of(tile * columns, columns), columns)]
        slot = lax.rem(number, jnp.int32(SUM_STAGES))
        act(pltpu.make_async_copy(refs.stages.at[slot], target, refs.stages_sem.at[slot]))

    return Ring(slots=SUM_STAGES, copies=copies)
