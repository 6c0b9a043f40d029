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
from systolic.ops.moe.ring_schedule import STAGES, WAYS
from systolic.schedule.legality import LANES


class Expert:
    """Rows of the table of experts."""

    CODE = 0  # its first row among sorted choices
    BEGIN = 1  # its first row of hidden
    ROWS = 2
    COUNT = 3


class Block:
    """Words about the block whose products are yet to be added."""

    SLOT = 0  # of products
    CODE = 1  # its first row among sorted choices
    USED = 2  # rows
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
    rows: Any  # [places + 1, block rows, f], the last of them for an expert's rows after its first block
    weights: Any  # [slots, f, columns]
    products: Any  # float32 [2, words, 128]: of two blocks, in tiles of eight rows
    sums: Any  # float32 [2, words, 128]: of all tokens, in tiles of eight, and eight of no token
    arrivals: Any  # [tiles · arrivals + 1, piece tokens, columns], the last of them zeros
    stages: Any  # [STAGES, piece tokens, columns]
    slots_sem: Any  # [slots]
    block_sem: Any
    recv_sem: Any  # [tiles · arrivals]
    send_sem: Any  # [STAGES]
    block: Any  # int32 [Block.COUNT] in SMEM: the last block


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
    repeats: bool,
    schedule: ScatterProductsSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "own_tokens d"]:
    """Return the sums of this device's tokens.

    Args:
      repeats: True if a token may have chosen an expert more than once, in consecutive rows.
    """
    dtype, (count, f, d) = down.dtype, down.shape
    hbm, scalars = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.SMEM)
    operands = ring, table, experts, words, factors
    own_tokens = schedule.tokens // ring.shape[0]
    piece = (schedule.scatter.combine.tokens, schedule.columns)
    arrivals = schedule.tiles * schedule.scatter.arrivals
    arrays = [array if interpret else from_hbm(array) for array in (hidden, down)]
    return pl.pallas_call(
        functools.partial(_kernel, axis_name, schedule, repeats),
        in_specs=[*(scalars for _ in operands), hbm, hbm],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((own_tokens, d), dtype, [hidden, down]),
        scratch_shapes=[
            pltpu.VMEM((schedule.places + 1, schedule.rows[0], f), dtype),
            pltpu.VMEM((schedule.slots, f, schedule.columns), dtype),
            pltpu.VMEM((2, schedule.rows[0] * schedule.registers, LANES), jnp.float32),
            pltpu.VMEM((2, (schedule.tokens + SUBLANES) * schedule.registers, LANES), jnp.float32),
            pltpu.VMEM((arrivals + 1, *piece), dtype),
            pltpu.VMEM((STAGES, *piece), dtype),
            pltpu.SemaphoreType.DMA((schedule.slots,)),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((arrivals,)),
            pltpu.SemaphoreType.DMA((STAGES,)),
            pltpu.SMEM((Block.COUNT,), jnp.int32),
        ],
        cost_estimate=pl.CostEstimate(
            flops=2 * schedule.mean_rows * f * d, transcendentals=0, bytes_accessed=count * f * d * dtype.itemsize
        ),
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_scatter_products_{dtype.name}_{count}_{schedule.tokens}_{f}_{d}",
    )(*operands, *arrays)


def _kernel(axis_name: str, schedule: ScatterProductsSchedule, repeats: bool, *refs: Any) -> None:
    refs = _Refs(*refs)
    walk = Walk(axis_name, refs.ring)
    products, sends = _Products(refs, schedule, repeats), Sends(refs, schedule, walk)
    experts, steps = refs.experts.shape[1], schedule.tiles * refs.experts.shape[1]
    inputs = products.inputs
    inputs.fill(steps)
    refs.arrivals[refs.arrivals.shape[0] - 1] = jnp.zeros(refs.arrivals.shape[1:], refs.arrivals.dtype)
    products.clear()
    walk.barrier()
    count = refs.table.shape[0]

    def step(number: Any, carry: None) -> None:
        tile, expert = lax.div(number, jnp.int32(experts)), lax.rem(number, jnp.int32(experts))

        @pl.when(tile > 0)
        def _send() -> None:
            # Before the first sums of a tile are added, those of two tiles before have been sent.
            first, end = (_share(sends.head, count, more, experts) for more in (expert - 1, expert))
            before = (tile - 1) * count
            pl.loop(before + jnp.where(expert > 0, first, 0), before + end)(sends.send)

        inputs.fetch_next(number, steps)
        inputs.wait(number)
        products.add(number, tile, expert)
        return carry

    lax.fori_loop(0, steps, step, None)
    pl.loop((schedule.tiles - 1) * count, sends.count)(sends.send)
    pl.loop(max(sends.count - STAGES, 0), sends.count)(sends.end)


def _share(head: int, count: int, expert: Any, experts: int) -> Any:
    """Return the number of sends up to an expert's step: `head` in the first, the others in equal shares of pairs."""
    pairs = (count - head) // WAYS
    return head + lax.div(expert * pairs, jnp.int32(experts - 1)) * WAYS if experts > 1 else count


class _Products:
    def __init__(self, refs: _Refs, schedule: ScatterProductsSchedule, repeats: bool) -> None:
        self._refs, self._schedule, self._repeats = refs, schedule, repeats

    @property
    def inputs(self) -> Ring:
        """The ring of weights, and of the first rows of an expert where they do not stay."""
        refs, schedule = self._refs, self._schedule
        experts = jnp.int32(refs.experts.shape[1])

        def copies(number: Any, act: Act) -> None:
            tile, expert, slot = lax.div(number, experts), lax.rem(number, experts), lax.rem(number, schedule.slots)
            columns = pl.ds(pl.multiple_of(tile * schedule.columns, schedule.columns), schedule.columns)
            weights = pltpu.make_async_copy(
                refs.down.at[expert, :, columns], refs.weights.at[slot], refs.slots_sem.at[slot]
            )
            has_rows = refs.experts[Expert.ROWS, expert] > 0
            comes = has_rows & (tile == 0) if schedule.keeps_rows else has_rows
            pl.when(comes)(lambda: act(self._rows_copy(expert, 0, self._place(number), refs.slots_sem.at[slot])))
            pl.when(has_rows)(lambda: act(weights))

        return Ring(slots=schedule.slots, copies=copies)

    def _place(self, number: Any) -> Any:
        """Return where a step's first rows are."""
        return lax.rem(number, jnp.int32(self._refs.rows.shape[0] - 1))

    def clear(self) -> None:
        refs, words = self._refs, self._schedule.registers * SUBLANES

        def zero(ref: Any, tile: Any) -> None:
            zeros = jnp.zeros((words, LANES), jnp.float32)
            for parity in range(2):
                ref[parity, pl.ds(pl.multiple_of(tile * words, words), words), :] = zeros

        pl.loop(0, self._schedule.tokens // SUBLANES)(functools.partial(zero, refs.sums))
        pl.loop(0, self._schedule.rows[0] // SUBLANES)(functools.partial(zero, refs.products))
        refs.block[Block.SLOT], refs.block[Block.CODE], refs.block[Block.USED] = (jnp.int32(0) for _ in range(3))

    def _rows_copy(self, expert: Any, row: Any, place: Any, sem: Any) -> Any:
        """Return the copy of a block's rows, whole registers."""
        refs = self._refs
        rows = jnp.minimum(refs.experts[Expert.ROWS, expert] - row, self._schedule.rows[0])
        rows = pl.multiple_of(lax.div(rows + ROW_TILE - 1, jnp.int32(ROW_TILE)) * ROW_TILE, ROW_TILE)
        first = pl.multiple_of(refs.experts[Expert.BEGIN, expert] + row, ROW_TILE)
        return pltpu.make_async_copy(refs.hidden.at[pl.ds(first, rows), :], refs.rows.at[place, pl.ds(0, rows), :], sem)

    def add(self, number: Any, tile: Any, expert: Any) -> None:
        """Add the products of an expert's rows with a tile of columns to the sums of their tokens."""
        refs, (large, small) = self._refs, self._schedule.rows
        size, parity, later = refs.experts[Expert.ROWS, expert], lax.rem(tile, jnp.int32(2)), refs.rows.shape[0] - 1
        count = lax.div(jnp.maximum(size - 2 * small + large - 1, 0), jnp.int32(large))

        def blocks(rows: int, first: Any, end: Any, *, is_large: bool) -> None:
            def block(at: Any, carry: None) -> None:
                row = first + at * rows

                @pl.when(row > 0)
                def _later_rows() -> None:
                    copy = self._rows_copy(expert, row, later, refs.block_sem)
                    copy.start()
                    copy.wait()

                if is_large:
                    target = 1 - refs.block[Block.SLOT]
                else:  # its code is too short to add up meanwhile
                    self.add_up(parity)
                    target = refs.block[Block.SLOT]
                used = jnp.minimum(size - row, rows)
                place = jnp.where(row > 0, later, self._place(number))
                operands = refs.rows.at[place, pl.ds(0, rows)], refs.weights.at[self.inputs.slot(number)]
                self._multiply(*operands, refs.products.at[target], used, parity if is_large else None)
                refs.block[Block.SLOT], refs.block[Block.USED] = target, used
                refs.block[Block.CODE] = refs.experts[Expert.CODE, expert] + row
                return carry

            lax.fori_loop(0, lax.div(jnp.maximum(end - first + rows - 1, 0), jnp.int32(rows)), block, None)

        blocks(large, 0, jnp.minimum(count * large, size), is_large=True)
        blocks(small, count * large, size, is_large=False)
        pl.when(expert == refs.experts.shape[1] - 1)(lambda: self.add_up(parity))

    def _multiply(self, rows: Any, weights: Any, products: Any, used: Any, parity: Any | None) -> None:
        """Multiply the rows of a block, and add up all rows of the block before in the same code.

        Args:
          parity: of sums; None: do not add.
        """
        schedule = self._schedule
        width, registers, eights = schedule.block_columns, schedule.registers, rows.shape[0] // SUBLANES
        shares = schedule.columns // width
        share = eights // shares
        # The rest is added to sums later, and zeros do no harm.
        is_used = lax.broadcasted_iota(jnp.int32, (rows.shape[0], width), 0) < used

        def on_columns(number: Any) -> None:
            for eight in range(share if parity is not None else 0):
                self._add_eight(parity, number * share + eight)
            total = lax.dot_general(
                rows[...],
                weights[:, pl.ds(pl.multiple_of(number * width, width), width)],
                (((1,), (0,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            total = jnp.where(is_used, total, 0)
            for row in range(0, rows.shape[0], SUBLANES):
                for register in range(width // LANES):
                    first = row * registers + (number * (width // LANES) + register) * SUBLANES
                    products[pl.ds(pl.multiple_of(first, SUBLANES), SUBLANES), :] = total[
                        row : row + SUBLANES, register * LANES : (register + 1) * LANES
                    ]

        pl.loop(0, shares)(on_columns)
        if parity is not None and share * shares < eights:
            pl.loop(share * shares, eights)(functools.partial(self._add_eight, parity))

    def add_up(self, parity: Any) -> None:
        """Add the last block's products to the sums of their tokens, and leave zeros in their place."""
        refs, words = self._refs, self._schedule.registers * SUBLANES

        def eight(number: Any) -> None:
            self._add_eight(parity, number)
            place = pl.ds(pl.multiple_of(number * words, words), words)
            refs.products[refs.block[Block.SLOT], place, :] = jnp.zeros((words, LANES), jnp.float32)

        pl.loop(0, lax.div(refs.block[Block.USED] + SUBLANES - 1, jnp.int32(SUBLANES)))(eight)
        refs.block[Block.USED] = jnp.int32(0)

    def _add_eight(self, parity: Any, number: Any) -> None:
        """Add eight rows of the last block's products to sums. Those that are not used are zeros."""
        refs, schedule, first = self._refs, self._schedule, number * SUBLANES
        registers, sums = schedule.registers, refs.sums.at[parity]
        words = SUBLANES * registers
        products = refs.products.at[refs.block[Block.SLOT], pl.ds(pl.multiple_of(first * registers, words), words)]
        code = refs.block[Block.CODE] + first

        def row_of(ref: Any, first: Any) -> Any:
            return ref.at[pl.ds(first, registers, stride=SUBLANES), :]

        places = [refs.words[code + row] for row in range(SUBLANES)]
        if self._repeats:
            used = refs.block[Block.USED] - first
            nothing = schedule.tokens * registers
            places = [jnp.where(row < used, place, nothing) for row, place in enumerate(places)]
        totals: list[Any] = []
        before = [row_of(sums, place)[...] for place in places]
        for row in range(SUBLANES):
            total = before[row]
            if self._repeats and row:
                total = jnp.where(places[row] == places[row - 1], totals[-1], total)
            totals.append(total + row_of(products, row)[...] * refs.factors[code + row])
        # The next expert's rows, of the same tokens perhaps, add zeros: they are written first.
        for row in range(SUBLANES) if self._repeats else reversed(range(SUBLANES)):
            row_of(sums, places[row])[...] = totals[row]
