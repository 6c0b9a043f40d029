"""Rows of tokens multiplied by their experts' matrices, while the tokens travel round a ring of devices.

    out[rows of e] = activation(x[tokens of these rows] @ gate[e]) · (x[tokens of these rows] @ up[e])

Tokens travel in slabs of columns and stay in VMEM. The steps go over slabs, and over experts: a step copies the rows of
its expert together and adds their products to sums in VMEM, while the next slab travels and the next weights arrive.
If not all sums fit, weights are read once for each panel of rows. An expert's rows begin at a whole register,
and rows between two experts are not defined.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.epilogue import Fn
from systolic.kernels.launch import from_hbm
from systolic.kernels.packed_rows import SUBLANES, PackedRows, in_tiles
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.moe.blocks import STAGES, ExpertsSpec
from systolic.ops.moe.kernel.collected_rows import CollectedRows
from systolic.ops.moe.kernel.stages import Stages
from systolic.ops.moe.kernel.stored_weights import scale_scratch
from systolic.ops.moe.ring.kernel.slab_products import Expert, SlabProducts
from systolic.ops.moe.ring.kernel.tokens import Travel
from systolic.ops.moe.ring.products import RingProductsSchedule
from systolic.schedule.legality import LANES


class _Refs(NamedTuple):
    ring: Any  # int32 [devices] in SMEM: axis indices round the ring
    experts: Any  # int32 [Expert.COUNT, experts] in SMEM
    first_tiles: Any  # int32 [parts] in SMEM: where parts are among all tokens
    codes: Any  # int32 [rows] in SMEM: `row_codes` of tokens
    x: Any  # [tiles, registers, 8, 128] in HBM, of this device
    matrices: tuple[Any, ...]  # [experts, d, f] in HBM
    scales: Any  # float32 [experts, slabs that share none, products · blocks of k, f or f / 128] in HBM, of codes
    parts: tuple[Any, ...]  # the same as x, the first slab of the devices that are few hops away
    out: Any  # [rows, f] in HBM
    tokens: Any  # a buffer of `PackedRows`, a slot for each slab
    rows: Any  # int32 [words, 128]: rows of a block, in registers of 16 rows
    weights: Any  # [slots, products, columns, f]
    slab_scales: Any  # float32 [slots, products · blocks of k, f or f / 128]
    column_scales: Any  # float32 [products · blocks of k, f]: scales of each column, if columns share them
    sums: Any  # float32 [products, panel and a block, f]
    stages: Any  # [STAGES, block rows, f]
    stored: Any  # int32 [1 + STAGES] in SMEM: blocks stored, and the rows of the last ones
    first_sem: Any
    own_sem: Any  # [slabs]
    weights_sem: Any  # [slots]
    stages_sem: Any  # [STAGES]
    send_sem: Any  # [directions, hops]
    recv_sem: Any  # [slabs, directions, hops]


def ring_products(
    x: Shaped[Array, "own_tokens d"],
    parts: Sequence[Shaped[Array, "part_tokens columns"]],
    first_tiles: Int[Array, " parts"],
    codes: Int[Array, " rows"],
    experts: Int[Array, "fields experts"],
    matrices: Sequence[Shaped[Array, "experts d f"]],
    scales: Float[Array, "experts slabs rows columns"] | None,
    ring: Int[Array, " devices"],
    *,
    axis_name: str,
    collective_id: int,
    activation: Fn | None,
    spec: ExpertsSpec,
    schedule: RingProductsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "rows f"]:
    """Return the activated products; `parts` are the first slab of the tokens that come by the early hops."""
    dtype, hops = jnp.dtype(spec.dtype), spec.hops
    tokens = PackedRows(
        slots=schedule.slabs,
        tiles=spec.tokens // SUBLANES,
        registers=schedule.columns // LANES,
        dtype=spec.dtype,
        is_interpreted=bool(interpret),
    )
    dtypes = "_".join(dict.fromkeys((spec.dtype, spec.matrices.dtype)))
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    arrays, large = [array if interpret else from_hbm(array) for array in matrices], schedule.rows[0]
    operands = ring, experts, first_tiles, codes
    return pl.pallas_call(
        functools.partial(_kernel, axis_name, spec, schedule, tokens, activation),
        in_specs=[
            *(scalars for _ in operands),
            hbm,
            tuple(hbm for _ in arrays),
            None if scales is None else hbm,
            tuple(hbm for _ in parts),
        ],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((spec.rows, spec.f), dtype, [x, *matrices]),
        scratch_shapes=[
            tokens.scratch,
            CollectedRows.scratch(large, schedule.columns),
            pltpu.VMEM((schedule.weight_slots, spec.products, schedule.columns, spec.f), arrays[0].dtype),
            *scale_scratch(schedule.buffers),
            pltpu.VMEM((spec.products, schedule.panel + large, spec.f), jnp.float32),
            pltpu.VMEM((STAGES, large, spec.f), dtype),
            Stages.stored_scratch(),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((schedule.slabs,)),
            pltpu.SemaphoreType.DMA((schedule.weight_slots,)),
            pltpu.SemaphoreType.DMA((STAGES,)),
            pltpu.SemaphoreType.DMA((len(DIRECTIONS), hops)),
            pltpu.SemaphoreType.DMA((schedule.slabs, len(DIRECTIONS), hops)),
        ],
        cost_estimate=pl.CostEstimate(flops=spec.flops, transcendentals=0, bytes_accessed=spec.least_hbm_bytes),
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_ring_products_{dtypes}_{spec.experts}_{spec.choices}_{spec.d}_{spec.f}",
    )(
        *operands,
        in_tiles(x, interpret),
        tuple(arrays),
        scales if scales is None or interpret else from_hbm(scales),
        tuple(in_tiles(part, interpret) for part in parts),
    )


def _kernel(
    axis_name: str,
    spec: ExpertsSpec,
    schedule: RingProductsSchedule,
    tokens: PackedRows,
    activation: Fn | None,
    *arrays: Any,
) -> None:
    refs = _Refs(*arrays)
    travel = Travel(refs, spec, tokens, Walk(axis_name, refs.ring))
    products = SlabProducts(refs, spec, schedule, tokens, activation)
    panels = jnp.maximum(
        lax.div(refs.experts[Expert.END, spec.experts - 1] + schedule.panel - 1, jnp.int32(schedule.panel)), 1
    )
    steps = panels * (schedule.slabs * spec.experts)
    weights = products.weights_ring
    products.stages.begin()
    travel.first_slab(lambda copy: copy.start())
    weights.fill(steps)
    pl.loop(1, schedule.slabs)(lambda slab: travel.own(slab, lambda copy: copy.start()))
    travel.walk.barrier()
    travel.first_hop()
    travel.first_slab(lambda copy: copy.wait())
    travel.later_hops()

    def step(number: Any, carry: None) -> None:
        at = products.at(number)
        travels = at.panel == 0
        pl.when((at.expert == 0) & (at.slab > 0) & travels)(lambda: travel.advance(at.slab, travel.hops))
        for hop in range(travel.hops):
            is_due = (at.expert == hop * spec.experts // travel.hops) & (at.slab + 1 < schedule.slabs) & travels
            pl.when(is_due)(lambda hop=hop: travel.advance(at.slab + 1, hop))
        weights.fetch_next(number, steps)
        weights.wait(number)
        products.add(at, weights.slot(number))
        return carry

    lax.fori_loop(0, steps, step, None)
    products.stages.end()
    travel.end(0, spec.early_hops)
    pl.loop(1, schedule.slabs)(travel.end)
