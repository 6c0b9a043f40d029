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
from jaxtyping import Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.epilogue import Fn, apply_epilogue
from systolic.kernels.launch import from_hbm
from systolic.kernels.packed_rows import SUBLANES, PackedRows, in_tiles
from systolic.kernels.ring import Act, Ring
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.moe.ring.kernel.tokens import Travel
from systolic.ops.moe.ring.products import ROW_TILE, STAGES, RingProductsSchedule, RingProductsSpec
from systolic.schedule.legality import LANES


class Expert:
    """Rows of the table of experts."""

    CODE = 0  # the first code of its rows
    BEGIN = 1  # its first row
    END = 2  # after its last row; rows are whole registers
    COUNT = 3


class _Step(NamedTuple):
    panel: Any  # rows whose sums are in VMEM together
    slab: Any
    expert: Any


class _Refs(NamedTuple):
    ring: Any  # int32 [devices] in SMEM: axis indices round the ring
    experts: Any  # int32 [Expert.COUNT, experts] in SMEM
    first_tiles: Any  # int32 [parts] in SMEM: where parts are among all tokens
    codes: Any  # int32 [rows] in SMEM: `row_codes` of tokens
    x: Any  # [tiles, registers, 8, 128] in HBM, of this device
    matrices: tuple[Any, ...]  # [experts, d, f] in HBM
    parts: tuple[Any, ...]  # the same as x, the first slab of other devices
    out: Any  # [rows, f] in HBM
    tokens: Any  # a buffer of `PackedRows`, a slot for each slab
    rows: Any  # int32 [words, 128]: rows of a block, in registers of 16 rows
    weights: Any  # [slots, products, columns, f]
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
    ring: Int[Array, " devices"],
    *,
    axis_name: str,
    collective_id: int,
    activation: Fn | None,
    spec: RingProductsSpec,
    schedule: RingProductsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "rows f"]:
    """Return the activated products; `parts` are the first slab of all other devices' tokens."""
    dtype, hops = jnp.dtype(spec.dtype), spec.devices // 2
    tokens = PackedRows(
        slots=schedule.slabs,
        tiles=spec.tokens // SUBLANES,
        registers=schedule.columns // LANES,
        dtype=spec.dtype,
        is_interpreted=bool(interpret),
    )
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    arrays, large = [array if interpret else from_hbm(array) for array in matrices], schedule.rows[0]
    operands = ring, experts, first_tiles, codes
    return pl.pallas_call(
        functools.partial(_kernel, axis_name, spec, schedule, tokens, activation, len(parts)),
        in_specs=[*(scalars for _ in operands), *(hbm for _ in range(1 + len(matrices) + len(parts)))],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((spec.rows, spec.f), dtype, [x, *matrices]),
        scratch_shapes=[
            tokens.scratch,
            pltpu.VMEM((large * schedule.columns // 2 // LANES, LANES), jnp.int32),
            pltpu.VMEM((schedule.weight_slots, spec.products, schedule.columns, spec.f), dtype),
            pltpu.VMEM((spec.products, schedule.panel + large, spec.f), jnp.float32),
            pltpu.VMEM((STAGES, large, spec.f), dtype),
            pltpu.SMEM((1 + STAGES,), jnp.int32),
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
        name=f"systolic_ring_products_{spec.dtype}_{spec.experts}_{spec.choices}_{spec.d}_{spec.f}",
    )(*operands, in_tiles(x, interpret), *arrays, *(in_tiles(part, interpret) for part in parts))


def _kernel(
    axis_name: str,
    spec: RingProductsSpec,
    schedule: RingProductsSchedule,
    tokens: PackedRows,
    activation: Fn | None,
    parts: int,
    *refs: Any,
) -> None:
    ring, experts, first_tiles, codes, x, *rest = refs
    matrices, rest = tuple(rest[: spec.products]), rest[spec.products :]
    refs = _Refs(ring, experts, first_tiles, codes, x, matrices, tuple(rest[:parts]), *rest[parts:])
    travel = Travel(refs, spec, tokens, Walk(axis_name, ring))
    products = _Products(refs, spec, schedule, tokens, activation)
    panels = jnp.maximum(
        lax.div(experts[Expert.END, spec.experts - 1] + schedule.panel - 1, jnp.int32(schedule.panel)), 1
    )
    steps = panels * (schedule.slabs * spec.experts)
    weights = products.weights_ring
    refs.stored[0] = jnp.int32(0)
    travel.first_slab(lambda copy: copy.start())
    weights.fill(steps)
    pl.loop(1, schedule.slabs)(lambda slab: travel.own(slab, lambda copy: copy.start()))
    travel.walk.barrier()
    travel.first_slab(lambda copy: copy.wait())

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
    products.end()
    pl.loop(1, schedule.slabs)(travel.end)


class _Products:
    def __init__(
        self,
        refs: _Refs,
        spec: RingProductsSpec,
        schedule: RingProductsSchedule,
        tokens: PackedRows,
        activation: Fn | None,
    ) -> None:
        self._refs, self._spec, self._schedule, self._tokens = refs, spec, schedule, tokens
        self._activation = activation

    def at(self, number: Any) -> _Step:
        slabs, experts = jnp.int32(self._schedule.slabs), jnp.int32(self._spec.experts)
        slab = lax.div(number, experts)
        return _Step(lax.div(slab, slabs), lax.rem(slab, slabs), lax.rem(number, experts))

    def _rows(self, at: _Step) -> tuple[Any, Any]:
        """Return the first row of an expert in a panel, and the number of them."""
        first, table, panel = at.panel * self._schedule.panel, self._refs.experts, self._schedule.panel
        begin = jnp.maximum(table[Expert.BEGIN, at.expert], first)
        return begin, jnp.minimum(table[Expert.END, at.expert], first + panel) - begin

    @property
    def weights_ring(self) -> Ring:
        refs, columns = self._refs, self._schedule.columns

        def copies(number: Any, act: Act) -> None:
            at = self.at(number)
            slot = lax.rem(number, jnp.int32(self._schedule.weight_slots))
            rows = pl.ds(pl.multiple_of(at.slab * columns, columns), columns)
            has_rows = self._rows(at)[1] > 0
            for product, matrices in enumerate(refs.matrices):
                copy = pltpu.make_async_copy(
                    matrices.at[at.expert, rows, :], refs.weights.at[slot, product], refs.weights_sem.at[slot]
                )
                pl.when(has_rows)(functools.partial(act, copy))

        return Ring(slots=self._schedule.weight_slots, copies=copies)

    def add(self, at: _Step, slot: Any) -> None:
        """Add the products of an expert's rows of a slab; of the last slab, store the result."""
        large, small = self._schedule.rows
        begin, size = self._rows(at)
        count = lax.div(jnp.maximum(size - 2 * small + large - 1, 0), jnp.int32(large))

        def blocks(rows: int, first: Any, end: Any) -> None:
            def block(number: Any, carry: None) -> None:
                row = first + number * rows
                self._block(at, slot, begin + row, jnp.minimum(size - row, rows), rows)
                return carry

            lax.fori_loop(0, lax.div(jnp.maximum(end - first + rows - 1, 0), jnp.int32(rows)), block, None)

        blocks(large, 0, jnp.minimum(count * large, size))
        blocks(small, count * large, size)

    def _block(self, at: _Step, slot: Any, row: Any, used: Any, rows: int) -> None:
        refs, spec, schedule, width = self._refs, self._spec, self._schedule, self._schedule.block_columns
        used = pl.multiple_of(used, ROW_TILE)
        self._collect(at.slab, refs.experts[Expert.CODE, at.expert] + row - refs.experts[Expert.BEGIN, at.expert], used)
        place = pl.multiple_of(row - at.panel * schedule.panel, ROW_TILE)
        # Later rows of the block are of the next expert.
        is_used = lax.broadcasted_iota(jnp.int32, (rows, width), 0) < used

        def on_columns(number: Any) -> None:
            columns = pl.ds(pl.multiple_of(number * width, width), width)
            for product in range(spec.products):
                total = lax.dot_general(
                    self._collected(rows),
                    refs.weights[slot, product, :, columns],
                    (((1,), (0,)), ((), ())),
                    preferred_element_type=jnp.float32,
                )
                before = refs.sums[product, pl.ds(place, rows), columns]
                total += jnp.where(at.slab == 0, jnp.zeros_like(before), before)
                refs.sums[product, pl.ds(place, rows), columns] = jnp.where(is_used, total, before)

        pl.loop(0, spec.f // width)(on_columns)
        pl.when(at.slab == schedule.slabs - 1)(lambda: self._store(row, place, used, rows))

    def _collect(self, slab: Any, code: Any, rows: Any) -> None:
        """Copy the rows of a block together."""
        refs, registers = self._refs, self._tokens.registers

        def tile(number: Any, carry: None) -> None:
            codes = [refs.codes[code + number * ROW_TILE + row] for row in range(ROW_TILE)]
            for word, words in enumerate(self._tokens.packed(refs.tokens, slab, codes)):
                for at, register in enumerate(words):
                    first = (number * registers + at * SUBLANES) * SUBLANES + word
                    refs.rows[pl.ds(first, register.shape[0], stride=SUBLANES), :] = register
            return carry

        lax.fori_loop(0, lax.div(rows, jnp.int32(ROW_TILE)), tile, None)

    def _collected(self, rows: int) -> Array:
        registers, dtype = self._tokens.registers, self._refs.weights.dtype

        def tile(number: int) -> Array:
            firsts = range(number * registers * SUBLANES, (number + 1) * registers * SUBLANES, SUBLANES)
            return jnp.concatenate([pltpu.bitcast(self._refs.rows[pl.ds(at, SUBLANES), :], dtype) for at in firsts], 1)

        return jnp.concatenate([tile(number) for number in range(rows // ROW_TILE)])

    def _store(self, row: Any, place: Any, used: Any, rows: int) -> None:
        refs, spec, number = self._refs, self._spec, self._refs.stored[0]
        stage = lax.rem(number, jnp.int32(STAGES))
        pl.when(number >= STAGES)(lambda: self._departure(stage, 0, refs.stored[1 + stage]).wait())

        def on_columns(number: Any) -> None:
            columns = pl.ds(pl.multiple_of(number * LANES, LANES), LANES)
            total, *up = (refs.sums[product, pl.ds(place, rows), columns] for product in range(spec.products))
            refs.stages[stage, pl.ds(0, rows), columns] = apply_epilogue(
                total, spec.dtype, activation=self._activation, up=up[0] if up else None
            )

        pl.loop(0, spec.f // LANES)(on_columns)
        self._departure(stage, row, used).start()
        refs.stored[1 + stage] = used
        refs.stored[0] = number + 1

    def _departure(self, stage: Any, begin: Any, rows: Any) -> Any:
        refs, rows = self._refs, pl.multiple_of(rows, ROW_TILE)
        target = refs.out.at[pl.ds(pl.multiple_of(begin, ROW_TILE), rows), :]
        return pltpu.make_async_copy(refs.stages.at[stage, pl.ds(0, rows), :], target, refs.stages_sem.at[stage])

    def end(self) -> None:
        for stage in range(STAGES):
            wait = functools.partial(self._departure, stage, 0, self._refs.stored[1 + stage])
            pl.when(self._refs.stored[0] > stage)(lambda wait=wait: wait().wait())
