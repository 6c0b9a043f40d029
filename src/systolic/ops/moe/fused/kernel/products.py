"""Rows of tokens, all of which are in VMEM, multiplied by their experts' gate and up.

    out[rows of e] = activation(x[tokens of these rows] @ gate[e]) · (x[tokens of these rows] @ up[e])

A step has columns of an expert's matrices. The rows of the expert are copied together while the next weights arrive. An
expert's rows begin at a whole register, and rows between two experts are not defined.
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
from systolic.kernels.epilogue import Fn, apply_epilogue
from systolic.kernels.launch import from_hbm
from systolic.kernels.packed_rows import SUBLANES, PackedRows, in_tiles
from systolic.kernels.ring import Act, Ring
from systolic.ops.moe.blocks import ROW_TILE, STAGES, WEIGHT_SLOTS, ExpertsSpec, small_rows
from systolic.ops.moe.fused.schedule import FusedProductsSchedule
from systolic.ops.moe.kernel.collected_rows import CollectedRows
from systolic.ops.moe.kernel.stages import Stages
from systolic.ops.moe.kernel.stored_weights import StoredWeights, scale_scratch
from systolic.ops.moe.kernel.summed_products import Expert
from systolic.schedule.legality import LANES


class Collected:
    """Words about the rows that have been collected."""

    BUFFER = 0  # of the current block
    READY = 1  # the first code of the rows in the other buffer
    COUNT = 2


class _Refs(NamedTuple):
    experts: Any  # int32 [Expert.COUNT, experts] in SMEM
    codes: Any  # int32 [rows] in SMEM: `row_codes` of tokens
    x: Any  # [tiles, registers, 8, 128] in HBM
    matrices: tuple[Any, ...]  # [experts, d, f] in HBM
    scales: Any  # float32 [experts, products · blocks of d, f or f / 128] in HBM, of codes
    out: Any  # [rows, f] in HBM
    tokens: Any  # a buffer of `PackedRows`
    rows: tuple[Any, ...]  # of `CollectedRows`: of an expert's block, and perhaps of the next expert's first one
    weights: Any  # [slots, products, d, columns]
    step_scales: Any  # float32 [slots, products · blocks of d, columns or f / 128]
    column_scales: Any  # float32 [products · blocks of d, columns]: scales of each column, if columns share them
    stages: Any  # [STAGES, block rows, columns]
    stored: Any  # of `Stages`
    collected: Any  # int32 [Collected.COUNT] in SMEM
    tokens_sem: Any
    weights_sem: Any  # [slots]
    stages_sem: Any  # [STAGES]


def fused_products(
    x: Shaped[Array, "tokens d"],
    experts: Int[Array, "fields experts"],
    codes: Int[Array, " rows"],
    matrices: Sequence[Shaped[Array, "experts d f"]],
    scales: Float[Array, "experts rows columns"] | None,
    *,
    activation: Fn | None,
    spec: ExpertsSpec,
    schedule: FusedProductsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "rows f"]:
    """Return the activated products of sorted rows."""
    dtype, large = jnp.dtype(spec.dtype), schedule.rows[0]
    tokens = PackedRows(
        slots=1,
        tiles=spec.tokens // SUBLANES,
        registers=spec.d // LANES,
        dtype=spec.dtype,
        is_interpreted=bool(interpret),
    )
    dtypes = "_".join(dict.fromkeys((spec.dtype, spec.matrices.dtype)))
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    arrays = [array if interpret else from_hbm(array) for array in matrices]
    rows = CollectedRows.scratch(large, spec.d)
    return pl.pallas_call(
        functools.partial(_kernel, spec, schedule, tokens, activation),
        in_specs=[scalars, scalars, hbm, tuple(hbm for _ in arrays), None if scales is None else hbm],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((spec.rows, spec.f), dtype, [x, *matrices]),
        scratch_shapes=[
            tokens.scratch,
            (rows,) * (1 + schedule.collects_ahead),
            pltpu.VMEM((WEIGHT_SLOTS, spec.products, spec.d, schedule.columns), arrays[0].dtype),
            *scale_scratch(schedule.buffers),
            pltpu.VMEM((STAGES, large, schedule.columns), dtype),
            Stages.stored_scratch(),
            pltpu.SMEM((Collected.COUNT,), jnp.int32),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((WEIGHT_SLOTS,)),
            pltpu.SemaphoreType.DMA((STAGES,)),
        ],
        cost_estimate=pl.CostEstimate(flops=spec.flops, transcendentals=0, bytes_accessed=spec.least_hbm_bytes),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_fused_products_{dtypes}_{spec.experts}_{spec.choices}_{spec.d}_{spec.f}",
    )(
        experts,
        codes,
        in_tiles(x, interpret),
        tuple(arrays),
        scales if scales is None or interpret else from_hbm(scales),
    )


def _kernel(
    spec: ExpertsSpec, schedule: FusedProductsSchedule, tokens: PackedRows, activation: Fn | None, *arrays: Any
) -> None:
    refs = _Refs(*arrays)
    products = _Products(refs, spec, schedule, tokens, activation)
    steps, weights = schedule.tiles * spec.experts, products.weights
    arrival = pltpu.make_async_copy(refs.x, tokens.in_tiles(refs.tokens).at[0], refs.tokens_sem)
    products.stages.begin()
    refs.collected[Collected.BUFFER] = jnp.int32(0)
    refs.collected[Collected.READY] = jnp.int32(-1)
    arrival.start()
    weights.fill(steps)
    arrival.wait()

    def step(number: Any, carry: None) -> None:
        weights.fetch_next(number, steps)
        weights.wait(number)
        products.add(number)
        return carry

    lax.fori_loop(0, steps, step, None)
    products.stages.end()


class _Products:
    def __init__(
        self,
        refs: _Refs,
        spec: ExpertsSpec,
        schedule: FusedProductsSchedule,
        tokens: PackedRows,
        activation: Fn | None,
    ) -> None:
        self._refs, self._spec, self._schedule, self._activation = refs, spec, schedule, activation
        self._rows = [CollectedRows(ref, tokens, refs.codes) for ref in refs.rows]
        self._weights = StoredWeights(spec.matrices, spec.dtype, refs.weights, refs.step_scales, refs.column_scales)
        self.stages = Stages(refs.stages, refs.out, refs.stored, refs.stages_sem)

    def _at(self, number: Any) -> tuple[Any, Any]:
        """Return the expert of a step, and its tile of columns."""
        tiles = jnp.int32(self._schedule.tiles)
        return lax.div(number, tiles), lax.rem(number, tiles)

    def _columns(self, tile: Any) -> Any:
        columns = self._schedule.columns
        return pl.ds(pl.multiple_of(tile * columns, columns), columns)

    @property
    def weights(self) -> Ring:
        refs = self._refs

        def copies(number: Any, act: Act) -> None:
            expert, tile = self._at(number)
            slot = lax.rem(number, jnp.int32(WEIGHT_SLOTS))
            columns, sem = self._columns(tile), refs.weights_sem.at[slot]

            @pl.when(refs.experts[Expert.ROWS, expert] > 0)
            def _has_rows() -> None:
                for product, matrices in enumerate(refs.matrices):
                    source = matrices.at[expert, :, columns]
                    act(pltpu.make_async_copy(source, refs.weights.at[slot, product], sem))
                if refs.scales is not None:
                    self._weights.copy_scales(refs.scales.at[expert], columns, slot, sem, act)

        return Ring(slots=WEIGHT_SLOTS, copies=copies)

    def add(self, number: Any) -> None:
        """Store the activated products of an expert's rows with a tile of its columns."""
        refs, (large, small) = self._refs, self._schedule.rows
        (expert, tile), slot = self._at(number), self.weights.slot(number)
        size, first_code = refs.experts[Expert.ROWS, expert], refs.experts[Expert.CODE, expert]
        pl.when(size > 0)(lambda: self._weights.spread_scales(slot, tile * (self._schedule.columns // LANES)))
        count = lax.div(jnp.maximum(size - small_rows(self._schedule.rows) + large - 1, 0), jnp.int32(large))
        collected = refs.collected
        is_ready = (tile == 0) & (size > 0) & (collected[Collected.READY] == first_code)
        collected[Collected.BUFFER] = jnp.where(is_ready, 1 - collected[Collected.BUFFER], collected[Collected.BUFFER])

        def blocks(rows: int, first: Any, end: Any, *, collects_ahead: bool) -> None:
            def block(number: Any, carry: None) -> None:
                row = first + number * rows
                used = lax.div(jnp.minimum(size - row, rows) + ROW_TILE - 1, jnp.int32(ROW_TILE)) * ROW_TILE
                # The rows of an expert with one block stay.
                is_missing = jnp.where(tile == 0, (row > 0) | ~is_ready, size > rows)
                for buffer, collected_rows in enumerate(self._rows):

                    @pl.when(collected[Collected.BUFFER] == buffer)
                    def _in_buffer(buffer: int = buffer, collected_rows: CollectedRows = collected_rows) -> None:
                        pl.when(is_missing)(lambda: collected_rows.collect(refs.tokens, 0, first_code + row, used))
                        next_code = first_code + size if collects_ahead else None
                        self._multiply(
                            buffer, refs.experts[Expert.BEGIN, expert] + row, used, slot, tile, rows, next_code
                        )

                if collects_ahead:
                    collected[Collected.READY] = first_code + size
                return carry

            lax.fori_loop(0, lax.div(jnp.maximum(end - first + rows - 1, 0), jnp.int32(rows)), block, None)

        blocks(large, 0, jnp.minimum(count * large, size), collects_ahead=self._schedule.collects_ahead)
        blocks(small, count * large, size, collects_ahead=False)

    def _multiply(
        self, buffer: int, row: Any, used: Any, slot: Any, tile: Any, rows: int, next_code: Any | None
    ) -> None:
        """Multiply the rows of a block, and collect the rows of the next expert in the same code."""
        refs, width, stage = self._refs, self._schedule.block_columns, self.stages.reserve()
        shares = self._schedule.columns // width
        groups = 0 if next_code is None else rows // ROW_TILE
        at_once = groups // shares

        def on_columns(share: Any) -> None:
            columns = pl.ds(pl.multiple_of(share * width, width), width)
            total, *up = (
                self._weights.product(functools.partial(self._rows[buffer].columns, rows), slot, product, columns)
                for product in range(self._spec.products)
            )
            refs.stages[stage, pl.ds(0, rows), columns] = apply_epilogue(
                total, self._spec.dtype, activation=self._activation, up=up[0] if up else None
            )
            for group in range(at_once):
                self._rows[1 - buffer].collect_tile(refs.tokens, 0, next_code, share * at_once + group)

        pl.loop(0, shares)(on_columns)
        if at_once * shares < groups:
            pl.loop(at_once * shares, groups)(
                functools.partial(self._rows[1 - buffer].collect_tile, refs.tokens, 0, next_code)
            )
        self.stages.send(stage, row, used, tile * self._schedule.columns)
