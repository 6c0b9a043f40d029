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
from systolic.kernels.ring import Act, Ring
from systolic.ops.collective.kernel.walk import Walk
from systolic.ops.moe.kernel.packed_rows import SUBLANES
from systolic.ops.moe.kernel.ring_sums import Sends
from systolic.ops.moe.ring_products import ROW_TILE, ScatterProductsSchedule
from systolic.ops.moe.ring_schedule import STAGES
from systolic.schedule.legality import LANES


class Expert:
    """Rows of the table of experts."""

    CODE = 0  # its first row among sorted choices
    BEGIN = 1  # its first row of hidden
    ROWS = 2
    COUNT = 3


class _Refs(NamedTuple):
    ring: Any  # int32 [devices] in SMEM: axis indices round the ring
    table: Any  # int32 [sends, Field.COUNT] in SMEM: the steps of `ScatterSchedule`
    experts: Any  # int32 [Expert.COUNT, experts] in SMEM
    words: Any  # int32 [choices] in SMEM: where the sum of the token of each row begins
    factors: Any  # float32 [choices] in SMEM: weights of rows
    hidden: Any  # [rows, f] in HBM
    down: Any  # [experts, f, d] in HBM
    out: Any  # [own tokens, d] in HBM
    rows: Any  # [slots, block rows, f]
    weights: Any  # [slots, f, columns]
    products: Any  # float32 [words, 128]: of a block, in tiles of eight rows
    sums: Any  # float32 [2, words, 128]: of all tokens, in tiles of eight, and eight of no token
    arrivals: Any  # [tiles · arrivals + 1, piece tokens, columns], the last of them zeros
    stages: Any  # [STAGES, piece tokens, columns]
    slots_sem: Any  # [slots]
    block_sem: Any
    recv_sem: Any  # [tiles · arrivals]
    send_sem: Any  # [STAGES]


def scatter_products(
    hidden: Shaped[Array, "rows f"],
    down: Shaped[Array, "experts f d"],
    experts: Int[Array, "fields experts"],
    words: Int[Array, " choices"],
    factors: Float[Array, " choices"],
    table: Int[Array, "sends fields"],
    ring: Int[Array, " devices"],
    *,
    axis_name: str,
    collective_id: int,
    schedule: ScatterProductsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "own_tokens d"]:
    """Return the sums of this device's tokens."""
    dtype, (count, f, d) = down.dtype, down.shape
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    operands = ring, table, experts, words, factors
    own_tokens = schedule.tokens // ring.shape[0]
    piece = (schedule.scatter.combine.tokens, schedule.columns)
    arrivals = schedule.tiles * schedule.scatter.arrivals
    arrays = [array if interpret else from_hbm(array) for array in (hidden, down)]
    return pl.pallas_call(
        functools.partial(_kernel, axis_name, schedule),
        in_specs=[*(scalars for _ in operands), hbm, hbm],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((own_tokens, d), dtype, [hidden, down]),
        scratch_shapes=[
            pltpu.VMEM((schedule.slots, schedule.rows[0], f), dtype),
            pltpu.VMEM((schedule.slots, f, schedule.columns), dtype),
            pltpu.VMEM((schedule.rows[0] * schedule.registers, LANES), jnp.float32),
            pltpu.VMEM((2, (schedule.tokens + SUBLANES) * schedule.registers, LANES), jnp.float32),
            pltpu.VMEM((arrivals + 1, *piece), dtype),
            pltpu.VMEM((STAGES, *piece), dtype),
            pltpu.SemaphoreType.DMA((schedule.slots,)),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((arrivals,)),
            pltpu.SemaphoreType.DMA((STAGES,)),
        ],
        cost_estimate=pl.CostEstimate(
            flops=2 * schedule.mean_rows * f * d, transcendentals=0, bytes_accessed=count * f * d * dtype.itemsize
        ),
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_scatter_products_{dtype.name}_{count}_{schedule.tokens}_{f}_{d}",
    )(*operands, *arrays)


def _kernel(axis_name: str, schedule: ScatterProductsSchedule, *refs: Any) -> None:
    refs = _Refs(*refs)
    walk = Walk(axis_name, refs.ring)
    products, sends = _Products(refs, schedule), Sends(refs, schedule, walk)
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
        products.add(tile, expert, inputs.slot(number))

        @pl.when(tile > 0)
        def _send() -> None:
            first, end = (lax.div((expert + more) * count, jnp.int32(experts)) for more in range(2))
            pl.loop(first, end)(lambda send: sends.send(tile - 1, send))

        return carry

    lax.fori_loop(0, steps, step, None)
    pl.loop(0, count)(lambda send: sends.send(jnp.int32(schedule.tiles - 1), send))
    pl.loop(max(schedule.tiles * count - STAGES, 0), schedule.tiles * count)(sends.end)


class _Products:
    def __init__(self, refs: _Refs, schedule: ScatterProductsSchedule) -> None:
        self._refs, self._schedule = refs, schedule

    @property
    def inputs(self) -> Ring:
        """The ring of weights, and of the first rows of an expert."""
        refs, schedule = self._refs, self._schedule
        experts = jnp.int32(refs.experts.shape[1])

        def copies(number: Any, act: Act) -> None:
            tile, expert, slot = lax.div(number, experts), lax.rem(number, experts), lax.rem(number, schedule.slots)
            columns = pl.ds(pl.multiple_of(tile * schedule.columns, schedule.columns), schedule.columns)
            weights = pltpu.make_async_copy(
                refs.down.at[expert, :, columns], refs.weights.at[slot], refs.slots_sem.at[slot]
            )
            has_rows = refs.experts[Expert.ROWS, expert] > 0
            pl.when(has_rows)(lambda: act(self._rows_copy(expert, 0, slot, refs.slots_sem.at[slot])))
            pl.when(has_rows)(lambda: act(weights))

        return Ring(slots=schedule.slots, copies=copies)

    def clear(self) -> None:
        words = self._schedule.registers * SUBLANES

        def zero(tile: Any) -> None:
            zeros = jnp.zeros((words, LANES), jnp.float32)
            for parity in range(2):
                self._refs.sums[parity, pl.ds(pl.multiple_of(tile * words, words), words), :] = zeros

        pl.loop(0, self._schedule.tokens // SUBLANES)(zero)

    def _rows_copy(self, expert: Any, row: Any, slot: Any, sem: Any) -> Any:
        """Return the copy of a block's rows, whole registers."""
        refs = self._refs
        rows = jnp.minimum(refs.experts[Expert.ROWS, expert] - row, self._schedule.rows[0])
        rows = pl.multiple_of(lax.div(rows + ROW_TILE - 1, jnp.int32(ROW_TILE)) * ROW_TILE, ROW_TILE)
        first = pl.multiple_of(refs.experts[Expert.BEGIN, expert] + row, ROW_TILE)
        return pltpu.make_async_copy(refs.hidden.at[pl.ds(first, rows), :], refs.rows.at[slot, pl.ds(0, rows), :], sem)

    def add(self, tile: Any, expert: Any, slot: Any) -> None:
        """Add the products of an expert's rows with a tile of columns to the sums of their tokens."""
        refs, (large, small) = self._refs, self._schedule.rows
        size = refs.experts[Expert.ROWS, expert]
        count = lax.div(jnp.maximum(size - 2 * small + large - 1, 0), jnp.int32(large))

        def blocks(rows: int, first: Any, end: Any) -> None:
            def block(number: Any, carry: None) -> None:
                row = first + number * rows

                @pl.when(row > 0)
                def _more_rows() -> None:
                    copy = self._rows_copy(expert, row, slot, refs.block_sem)
                    copy.start()
                    copy.wait()

                self._multiply(slot, rows)
                used = jnp.minimum(size - row, rows)
                self._add_up(lax.rem(tile, jnp.int32(2)), refs.experts[Expert.CODE, expert] + row, used)
                return carry

            lax.fori_loop(0, lax.div(jnp.maximum(end - first + rows - 1, 0), jnp.int32(rows)), block, None)

        blocks(large, 0, jnp.minimum(count * large, size))
        blocks(small, count * large, size)

    def _multiply(self, slot: Any, rows: int) -> None:
        refs, schedule = self._refs, self._schedule
        width, registers = schedule.block_columns, schedule.registers

        def on_columns(number: Any) -> None:
            total = lax.dot_general(
                refs.rows[slot, pl.ds(0, rows), :],
                refs.weights[slot, :, pl.ds(pl.multiple_of(number * width, width), width)],
                (((1,), (0,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            for row in range(0, rows, SUBLANES):
                for register in range(width // LANES):
                    first = row * registers + (number * (width // LANES) + register) * SUBLANES
                    refs.products[pl.ds(pl.multiple_of(first, SUBLANES), SUBLANES), :] = total[
                        row : row + SUBLANES, register * LANES : (register + 1) * LANES
                    ]

        pl.loop(0, schedule.columns // width)(on_columns)

    def _add_up(self, parity: Any, code: Any, used: Any) -> None:
        """Add rows of products to the sums of their tokens, eight rows at a time."""
        refs, schedule = self._refs, self._schedule
        registers, nothing = schedule.registers, schedule.tokens * schedule.registers

        def row_of(ref: Any, first: Any) -> Any:
            return ref.at[pl.ds(first, registers, stride=SUBLANES), :]

        def eight(number: Any) -> None:
            rows = [number * SUBLANES + row for row in range(SUBLANES)]
            words = [jnp.where(row < used, refs.words[code + row], nothing) for row in rows]
            before = [row_of(refs.sums.at[parity], word)[...] for word in words]
            totals: list[Any] = []
            for at, row in enumerate(rows):
                product = row_of(refs.products, number * (SUBLANES * registers) + at)[...]
                # A token may have chosen an expert twice, in consecutive rows.
                total = jnp.where(words[at] == words[at - 1], totals[-1], before[at]) if totals else before[at]
                totals.append(total + product * refs.factors[code + row])
            for word, total in zip(words, totals, strict=True):
                row_of(refs.sums.at[parity], word)[...] = total

        pl.loop(0, lax.div(used + SUBLANES - 1, jnp.int32(SUBLANES)))(eight)
