"""The matmul that starts its copies by itself and so loses less at both ends: for sizes that tiles divide.

It takes the same steps as `kernels.auto_pipeline`, in the same order, on one core, without a batch. What differs:

- The first step's blocks arrive in chunks along k, and products start with the first chunk.
- In the last step of all a subtile of the output is on its way to HBM while the next one is multiplied.
- An operand whose block stays for several steps is fetched one block ahead from the moment its buffer is free, not in
  the one step before it is needed.

In VMEM: `num_stages` blocks of an operand that changes in every step, two of one that stays, and two of each output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.auto_pipeline import SMALL_ELEMENTS, from_hbm
from systolic.kernels.operands import Operand, multiply
from systolic.kernels.step import Functions, step
from systolic.kernels.streams import Order, Output, Stream
from systolic.kernels.subtiles import Slice, loop, quotient
from systolic.schedule import (
    Dimension,
    KernelConfig,
    block_shape,
    blocked_traffic,
    dimensions,
    extra_block,
    is_resident,
    scratch_buffers,
)
from systolic.spec import MatmulSpec


def manual_dma_matmul(
    lhs: Shaped[Array, "rows columns"],
    rhs: Shaped[Array, "rows columns"],
    extras: Sequence[Shaped[Array, "rows columns"]],
    *,
    spec: MatmulSpec,
    functions: Functions,
    config: KernelConfig,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Shaped[Array, "m n"], ...]:
    """All outputs of the product, the first as `spec.dtype_out`.

    Args:
      lhs, rhs, extras: as `auto_pipeline_matmul` takes them, without a batch.
      config: with the manual pipeline, of tiles for which `schedule.can_run_manually`.
    """
    arrays = [lhs, rhs, *extras]
    arrays = [array if interpret else from_hbm(array) for array in arrays]
    tiles = config.tiles
    shapes = [block_shape(spec, tiles, "lhs"), block_shape(spec, tiles, "rhs")]
    along: list[tuple[Dimension | None, Dimension | None]] = [dimensions(spec, "lhs"), dimensions(spec, "rhs")]
    resident = [False, False]
    for extra in spec.fusion.extras:
        rows, columns = dimensions(spec, extra.beside)
        shapes.append(extra_block(spec, tiles, extra))
        # A row stays as a whole. It is copied beside the first blocks and not ahead of them, as the call would do it.
        whole = is_resident(spec, tiles, extra)
        along.append((rows if extra.rows and not whole else None, columns if extra.columns and not whole else None))
        resident.append(whole and arrays[len(resident)].size <= SMALL_ELEMENTS)
    dtypes_out = (spec.dtype_out, *spec.fusion.more_outputs)
    order = Order.of(spec, config)
    moving = [number for number, stays in enumerate(resident) if not stays]
    periods = {number: order.period(along[number]) for number in moving}
    buffers = {number: config.num_stages if periods[number] == 1 else 2 for number in moving}
    scratch = [pltpu.VMEM(b.shape, jnp.dtype(b.dtype)) for b in scratch_buffers(spec, config)]

    def kernel(*refs: Any) -> None:
        given = iter(refs)
        inputs = [next(given) for _ in arrays]
        outs_hbm = [next(given) for _ in dtypes_out]
        blocks = {number: next(given) for number in moving}
        sems = {number: next(given) for number in moving}
        outs = [Output(hbm, next(given), next(given), tiles.tile_m, tiles.tile_n) for hbm in outs_hbm]
        first_sem = next(given)
        rest = list(given)
        streams = {
            number: Stream(
                hbm=inputs[number],
                vmem=blocks[number],
                sem=sems[number],
                shape=shapes[number],
                along=along[number],
                period=periods[number],
                buffers=buffers[number],
            )
            for number in moving
        }
        _run(inputs, streams, outs, first_sem, rest, order, spec, functions, config)

    cost = pl.CostEstimate(
        flops=spec.flops * spec.passes,
        transcendentals=functions.transcendentals,
        bytes_accessed=blocked_traffic(spec, config).hbm_bytes,
    )
    run = pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM if stays else pltpu.HBM) for stays in resident],
        out_specs=[pl.BlockSpec(memory_space=pltpu.HBM) for _ in dtypes_out],
        out_shape=[shape_with_mesh_axes((spec.m, spec.n), dtype, arrays) for dtype in dtypes_out],
        scratch_shapes=[
            *(pltpu.VMEM((buffers[number], *shapes[number]), arrays[number].dtype) for number in moving),
            *(pltpu.SemaphoreType.DMA((buffers[number],)) for number in moving),
            *(
                kind
                for dtype in dtypes_out
                for kind in (
                    pltpu.VMEM((2, tiles.tile_m, tiles.tile_n), jnp.dtype(dtype)),
                    pltpu.SemaphoreType.DMA((2,)),
                )
            ),
            pltpu.SemaphoreType.DMA((2, config.fill_chunks)),
            *scratch,
        ],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        cost_estimate=cost,
        interpret=interpret,
        name=f"systolic_matmul_{spec.dtype_lhs}_{spec.m}_{spec.k}_{spec.n}",
    )
    with jax.named_scope("systolic.matmul"):
        return tuple(run(*arrays))


def _run(
    inputs: Sequence[Any],
    streams: dict[int, Stream],
    outs: Sequence[Output],
    first_sem: Any,
    scratch: Sequence[Any],
    order: Order,
    spec: MatmulSpec,
    functions: Functions,
    config: KernelConfig,
) -> None:
    grid_k, total, fill_chunks = order.counts["k"], order.steps, config.fill_chunks
    operands = (streams[0], streams[1])
    beside = {number: extra.beside for number, extra in enumerate(spec.fusion.extras, start=2)}
    early = [stream for number, stream in streams.items() if beside.get(number) in ("lhs", "rhs")]
    # What stands beside the output is first needed behind the products of all pieces.
    late = [stream for number, stream in streams.items() if beside.get(number) == "out"]

    all_of_it = Slice(row=0, column=0, n_rows=config.tiles.tile_m, n_columns=config.tiles.tile_n)

    def copies(piece: Slice, run: Any) -> list[Any]:
        place = order.place(run * grid_k)
        return [out.copy(piece, run, place) for out in outs]

    def wait_for(run: Any) -> None:
        for copy in copies(all_of_it, run):
            copy.wait()

    for stream in early:
        stream.copy(0, order).start()
    for number in range(fill_chunks):
        for side, stream in enumerate(operands):
            stream.piece(number, fill_chunks, first_sem.at[side, number]).start()
    for stream in late:
        stream.copy(0, order).start()
    for stream in streams.values():
        if stream.period == 1:
            for ahead in range(1, min(stream.buffers - 1, total)):
                stream.copy(ahead, order).start()

    def fetch_ahead(number: Any) -> None:
        # What the next steps need goes first: copies end in the order in which they were started.
        for stream in sorted(streams.values(), key=lambda stream: stream.period):
            if stream.period == 1:
                later = number + stream.buffers - 1
                pl.when(later < total)(stream.copy(later, order).start)
            elif stream.period < total:
                later = number + stream.period
                pl.when((number % stream.period == 0) & (later < total))(stream.copy(later, order).start)

    def work(number: Any) -> None:
        place = order.place(number)
        run = quotient(number, grid_k)
        refs = [streams[at].block(number) if at in streams else ref for at, ref in enumerate(inputs)]
        outputs = [out.vmem.at[run % 2] for out in outs]
        # An output's buffer is used again two runs later.
        if order.runs > 2:
            pl.when((place.kk == 0) & (run >= 2))(lambda: wait_for(run - 2))
        is_last = number == total - 1

        def finished(piece: Slice) -> None:
            @pl.when(is_last)
            def _store() -> None:
                for copy in copies(piece, order.runs - 1):
                    copy.start()

        step(
            place,
            *refs,
            *outputs,
            *scratch,
            spec=spec,
            functions=functions,
            config=config,
            finished=finished,
            first=first if fill_chunks > 1 else None,
        )

        @pl.when((place.kk == grid_k - 1) & jnp.logical_not(is_last))
        def _store_all() -> None:
            for copy in copies(all_of_it, run):
                copy.start()

    def first(lhs: Operand, rhs: Operand, acc_vmem: Any) -> None:
        """The sum of the first step, piece by piece."""

        def add(number: Any) -> None:
            for side, stream in enumerate(operands):
                stream.piece(number, fill_chunks, first_sem.at[side, number]).wait()
            part_lhs, part_rhs = (
                operand.part(*stream.along_k(number, fill_chunks))
                for operand, stream in zip((lhs, rhs), operands, strict=True)
            )

            def one(at: Any) -> None:
                piece = Slice.number(at, config)
                found = multiply(part_lhs, part_rhs, piece, spec)
                so_far = acc_vmem[piece.rows, piece.columns]
                acc_vmem[piece.rows, piece.columns] = jnp.where(number == 0, jnp.zeros_like(found), so_far) + found

            loop(config.subtiles, one)

        loop(fill_chunks, add)
        for stream in late:
            stream.copy(0, order).wait()

    def one_step(number: Any, carry: None) -> None:
        fetch_ahead(number)
        for stream in streams.values():
            waited = stream in operands or (fill_chunks > 1 and stream in late)  # in the first step, where it is needed
            first_too = number > 0 if waited else True
            pl.when((number % stream.period == 0) & first_too)(stream.copy(number, order).wait)
        if fill_chunks == 1:
            for side, stream in enumerate(operands):
                pl.when(number == 0)(stream.piece(0, 1, first_sem.at[side, 0]).wait)
        work(number)
        return carry

    lax.fori_loop(0, total, one_step, None)
    if order.runs > 1:
        wait_for(order.runs - 2)

    def wait_for_slice(number: Any) -> None:
        for copy in copies(Slice.number(number, config), order.runs - 1):
            copy.wait()

    loop(config.subtiles, wait_for_slice)
