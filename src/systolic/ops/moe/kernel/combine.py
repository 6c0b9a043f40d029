"""The weighted sum of each token's rows: `out[t] = Σ weights[t, j] · results[row of choice j of t]`, summed in float32.

Copying row after row from HBM would cost more cycles for starting copies than the rows take. But rows of one expert are
in the order of tokens, so the rows of a block of consecutive tokens form one run for each expert. The kernel copies
these runs to VMEM, whole tiles of eight rows, while it adds up the block before; rows in VMEM are read one by one.

The grid goes over blocks of tokens and, where their rows do not fit, over slabs of columns. In VMEM: rows of two steps,
sums of 16 tokens, and what the pipeline keeps of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.packed_rows import SUBLANES, PackedRows, in_tiles
from systolic.ops.moe.schedule import SUMMED_TOKENS, CombineSchedule, CombineSpec
from systolic.schedule.legality import LANES


class Run:
    """Rows of the table of runs: the tiles of an expert's rows of a block."""

    SOURCE = 0  # the first tile in HBM
    TARGET = 1  # and in VMEM
    TILES = 2  # number of tiles
    COUNT = 3


class _Refs(NamedTuple):
    runs: Any  # int32 [1, Run.COUNT, experts] in SMEM, of this step
    next_runs: Any  # of the next step
    codes: Any  # int32 [1, 1, block tokens · k] in SMEM: `row_codes` of the rows of each choice
    weights: Any  # float32, the same
    results: Any  # [tiles, registers, 8, 128] in HBM
    out: Any  # [block tokens, columns]
    rows: Any  # a buffer of `PackedRows`
    sums: Any  # float32 [2 · registers · 8, 128]: of 16 tokens, in tiles of eight
    rows_sem: Any


def combine_rows(
    results: Shaped[Array, "rows d"],
    runs: Int[Array, "blocks fields experts"],
    codes: Int[Array, "blocks 1 choices"],
    weights: Float[Array, "blocks 1 choices"],
    *,
    spec: CombineSpec,
    schedule: CombineSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "tokens d"]:
    """Return the sums.

    Args:
      results: rows are a multiple of 8, d of 128.
      runs: see `Run`; the runs of a block take the slot's tiles one after another.
    """
    d = results.shape[1]
    slabs, last_block = schedule.slabs, schedule.blocks - 1
    packed = schedule.packed_rows(spec, bool(interpret))

    def scalars(array: Array, steps_ahead: int = 0) -> pl.BlockSpec:
        def block(number: Any, slab: Any) -> Any:
            return jnp.minimum(number + (slab + steps_ahead) // slabs, last_block), 0, 0

        return pl.BlockSpec((1, *array.shape[1:]), block, memory_space=pltpu.SMEM)

    tables = [runs, runs, codes, weights]
    if not interpret:
        # XLA would move each to VMEM in a copy of its own, one after another, when the results are there.
        tables = [pltpu.with_memory_space_constraint(table, pltpu.HBM) for table in tables]
    return pl.pallas_call(
        functools.partial(_kernel, spec, schedule, packed),
        grid=(schedule.blocks, slabs),
        in_specs=[
            scalars(runs),
            scalars(runs, steps_ahead=1),
            scalars(codes),
            scalars(weights),
            pl.BlockSpec(memory_space=pltpu.HBM),
        ],
        out_specs=pl.BlockSpec((schedule.tokens, schedule.columns), lambda number, slab: (number, slab)),
        out_shape=shape_with_mesh_axes((spec.tokens, d), jnp.dtype(spec.dtype_out), [results, weights]),
        scratch_shapes=[
            packed.scratch,
            pltpu.VMEM((SUMMED_TOKENS * schedule.columns // LANES, LANES), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        cost_estimate=pl.CostEstimate(flops=spec.flops, transcendentals=0, bytes_accessed=spec.least_hbm_bytes),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_combine_{spec.dtype}_{spec.tokens}_{spec.top_k}_{d}",
    )(*tables, in_tiles(results, interpret))


def _kernel(spec: CombineSpec, schedule: CombineSchedule, packed: PackedRows, *refs: Any) -> None:
    block, slab, refs = pl.program_id(0), pl.program_id(1), _Refs(*refs)
    step = block * schedule.slabs + slab
    slot = lax.rem(step, 2)
    registers = schedule.columns // LANES

    def columns(slab: Any) -> Any:
        return pl.ds(slab * registers, registers)

    @pl.when(step == 0)
    def _first() -> None:
        packed.zero(refs.rows, packed.tiles - 1)
        fetch_rows(refs.runs, columns(0), slot, packed, refs)

    @pl.when(step + 1 < schedule.blocks * schedule.slabs)
    def _next() -> None:
        fetch_rows(refs.next_runs, columns(lax.rem(slab + 1, schedule.slabs)), 1 - slot, packed, refs)

    wait_for_rows(slot, spec, packed, refs)

    def store(rows: Any, columns: slice, sums: Array) -> None:
        refs.out[rows, columns] = sums.astype(refs.out.dtype)

    tokens = jnp.minimum(schedule.tokens, spec.tokens - block * schedule.tokens)
    add_up(tokens, slot, spec, packed, refs, store)


def fetch_rows(runs: Any, columns: Any, slot: Any, packed: PackedRows, refs: Any) -> None:
    """Start the copies of the runs of a block."""
    target = packed.in_tiles(refs.rows)

    def fetch(run: Any, carry: None) -> None:
        count = runs[0, Run.TILES, run]

        @pl.when(count > 0)
        def _start() -> None:
            source = refs.results.at[pl.ds(runs[0, Run.SOURCE, run], count), columns]
            tiles = target.at[slot, pl.ds(runs[0, Run.TARGET, run], count)]
            pltpu.make_async_copy(source, tiles, refs.rows_sem.at[slot]).start()

        return carry

    lax.fori_loop(0, runs.shape[2], fetch, None)


def wait_for_rows(slot: Any, spec: CombineSpec, packed: PackedRows, refs: Any) -> None:
    """Wait for the copies of the runs of this block, by one wait for the bytes of all."""
    last_run = spec.experts - 1
    count = refs.runs[0, Run.TARGET, last_run] + refs.runs[0, Run.TILES, last_run]
    tiles = pl.ds(0, count)

    @pl.when(count > 0)
    def _arrived() -> None:
        source, target = refs.results.at[tiles, pl.ds(0, packed.registers)], packed.in_tiles(refs.rows).at[slot, tiles]
        pltpu.make_async_copy(source, target, refs.rows_sem.at[slot]).wait()


def add_up(
    tokens: Any, slot: Any, spec: CombineSpec, packed: PackedRows, refs: Any, store: Callable[[Any, slice, Array], None]
) -> None:
    """Call `store(rows, columns, sums)` for each 128 columns of each 16 tokens of a block, with sums in float32."""
    registers = packed.registers

    def group(number: Any, carry: None) -> None:
        for token in range(SUMMED_TOKENS):
            _store_sums(_sums(number * SUMMED_TOKENS + token, slot, spec, packed, refs), token, registers, refs)
        rows = pl.ds(pl.multiple_of(number * SUMMED_TOKENS, SUMMED_TOKENS), SUMMED_TOKENS)
        for register in range(registers):
            tiles = [
                refs.sums[pl.ds((tile + register) * SUBLANES, SUBLANES), :]
                for tile in range(0, SUMMED_TOKENS // SUBLANES * registers, registers)
            ]
            store(rows, slice(register * LANES, (register + 1) * LANES), jnp.concatenate(tiles))
        return carry

    lax.fori_loop(0, lax.div(tokens + SUMMED_TOKENS - 1, SUMMED_TOKENS), group, None)


def _sums(token: Any, slot: Any, spec: CombineSpec, packed: PackedRows, refs: Any) -> list[Array]:
    """Return the weighted sum of a token's rows, in registers."""
    sums: list[Any] = []
    for choice in range(spec.top_k):
        number = token * spec.top_k + choice
        weight = refs.weights[0, 0, number]
        terms = [register * weight for register in packed.row(refs.rows, slot, refs.codes[0, 0, number])]
        sums = [total + term for total, term in zip(sums, terms, strict=True)] if sums else terms
    return sums


def _store_sums(sums: list[Array], token: int, registers: int, refs: Any) -> None:
    """Store a row: one sublane in each of its tile's registers."""
    tile, sublane = divmod(token, SUBLANES)
    for number, total in enumerate(sums):
        first = (tile * registers + number * SUBLANES) * SUBLANES + sublane
        refs.sums[pl.ds(first, total.shape[0], stride=SUBLANES), :] = total
