"""The matmul that starts its own copies and so loses less at both ends: for sizes that tiles divide.

It takes the same steps as `kernels.auto_pipeline`, in the same order, on one core, without a batch. The differences:

- The first step's blocks arrive in chunks along k, and products start with the first chunk.
- In the last step of all a subtile of the output is on its way to HBM while the next one is multiplied.
- An operand whose block stays for several steps is fetched one block ahead from the moment its buffer is free, not in
  the one step before it is needed.

In VMEM: `num_stages` blocks of an operand that changes in every step, two of one that stays, and two of each output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import SMALL_ELEMENTS, from_hbm
from systolic.kernels.operands import Operand, multiply
from systolic.kernels.ring import Act, Ring
from systolic.kernels.subtiles import Subtile, loop, quotient
from systolic.ops.matmul.kernel.launch import MatmulKernel
from systolic.ops.matmul.kernel.step import step
from systolic.ops.matmul.kernel.streams import SLOTS, OutputStream, Stream
from systolic.schedule import Block, GridSchedule, Scratch, operand_blocks
from systolic.spec import Operands


class Buffers(NamedTuple):
    """The kernel's buffers: shapes for Pallas, or refs. None for operands that stay in VMEM as a whole."""

    blocks: Operands
    sems: Operands
    outs: tuple[tuple[Any, Any], ...]  # blocks and semaphores of each output
    fill_sem: Any  # [factors, fill_chunks], of their first blocks
    scratch: Scratch


def manual_dma_matmul(operands: Operands, kernel: MatmulKernel) -> tuple[Shaped[Array, "m n"], ...]:
    """Return all outputs of the product, with the dtypes `spec.dtypes_out`; `schedule.can_run_manually` must hold."""
    spec, config = kernel.spec, kernel.config
    memories = operands.map(kernel.memory_to_read, operands.sides)
    arrays = operands if kernel.interpret else operands.map(from_hbm, memories)
    tiles = config.tiles
    schedule = GridSchedule.of(spec, config)

    # A row is copied together with the first blocks and not before them, as the call would do it.
    def moving(block: Block, array: Array) -> Block | None:
        return None if block.resident and array.size <= SMALL_ELEMENTS else block

    def num_stages(block: Block) -> int:
        return config.num_stages if schedule.reuse_steps(block.along) == 1 else SLOTS

    def of_moving(fn: Any) -> Operands:
        return blocks.map(lambda block: None if block is None else fn(block))

    blocks = operand_blocks(spec, tiles).map(moving, arrays)
    buffers = Buffers(
        blocks=of_moving(lambda block: pltpu.VMEM((num_stages(block), *block.shape), jnp.dtype(block.dtype))),
        sems=of_moving(lambda block: pltpu.SemaphoreType.DMA((num_stages(block),))),
        outs=tuple(
            (pltpu.VMEM((SLOTS, tiles.tile_m, tiles.tile_n), jnp.dtype(dtype)), pltpu.SemaphoreType.DMA((SLOTS,)))
            for dtype in spec.dtypes_out
        ),
        fill_sem=pltpu.SemaphoreType.DMA((len(blocks.factors), config.fill_chunks)),
        scratch=kernel.scratch_shapes,
    )

    def body(refs: Operands, outs_hbm: tuple[Any, ...], buffers: Buffers) -> None:
        def stream(ref: Any, block: Block | None, vmem: Any, sem: Any) -> Stream | None:
            if block is None:
                return None
            return Stream(
                hbm=ref,
                vmem=vmem,
                sem=sem,
                block=block,
                schedule=schedule,
                reuse_distance=schedule.reuse_steps(block.along),
                num_stages=num_stages(block),
            )

        _Kernel(
            refs=refs,
            streams=refs.map(stream, blocks, buffers.blocks, buffers.sems),
            outs=tuple(
                OutputStream(outs_hbm[0], *scratch, tiles.tile_m, tiles.tile_n, number * spec.n)
                if spec.joined_outputs
                else OutputStream(outs_hbm[number], *scratch, tiles.tile_m, tiles.tile_n)
                for number, scratch in enumerate(buffers.outs)
            ),
            fill_sem=buffers.fill_sem,
            scratch=buffers.scratch,
            schedule=schedule,
            kernel=kernel,
        ).run()

    all_blocks = arrays.present()
    shapes = (
        [((spec.m, 2 * spec.n), spec.dtype_out)]
        if spec.joined_outputs
        else [((spec.m, spec.n), dtype) for dtype in spec.dtypes_out]
    )
    return kernel.launch(
        body,
        arrays,
        in_specs=arrays.map(
            lambda _, block, memory: pl.BlockSpec(memory_space=pltpu.VMEM if block is None else memory),
            blocks,
            memories,
        ),
        out_specs=tuple(pl.BlockSpec(memory_space=pltpu.HBM) for _ in shapes),
        out_shape=tuple(shape_with_mesh_axes(*shape, all_blocks) for shape in shapes),
        scratch_shapes=(buffers,),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=kernel.vmem_limit_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kernel:
    refs: Operands
    streams: Operands  # a `Stream` for each operand that moves
    outs: tuple[OutputStream, ...]
    fill_sem: Any
    scratch: Scratch
    schedule: GridSchedule
    kernel: MatmulKernel

    @property
    def factors(self) -> tuple[Stream, ...]:
        """The multiplied operands, whose first blocks arrive in chunks."""
        return tuple(self.streams.factors)

    @property
    def late(self) -> list[Stream]:
        """The epilogue operands, which are first needed after all chunks have been multiplied."""
        return self.streams.of_output.present()

    def run(self) -> None:
        schedule, config = self.schedule, self.kernel.config
        self._begin()
        lax.fori_loop(0, schedule.steps, self._step, None)
        last = schedule.output_tiles - 1
        self._stored.wait_all(max(last + 1 - SLOTS, 0), last)

        def wait_for_subtile(number: Any) -> None:
            for copy in self._stores(Subtile.number(number, config), last):
                copy.wait()

        loop(config.subtiles, wait_for_subtile)

    @property
    def _stored(self) -> Ring:
        def copies(tile: Any, act: Act) -> None:
            for copy in self._stores(Subtile.whole(self.kernel.config.tiles), tile):
                act(copy)

        return Ring(slots=SLOTS, copies=copies)

    def _begin(self) -> None:
        all_streams = self.streams.present()
        late, fill_chunks = self.late, self.kernel.config.fill_chunks
        for stream in all_streams:
            if stream not in self.factors and stream not in late:
                stream.ring.start(0)
        for number in range(fill_chunks):
            for side, stream in enumerate(self.factors):
                stream.fill_chunk(number, fill_chunks, self.fill_sem.at[side, number]).start()
        for stream in late:
            stream.ring.start(0)
        for stream in all_streams:
            stream.ring.fill(self.schedule.steps, begin=1)

    def _step(self, number: Any, carry: None) -> None:
        fill_chunks = self.kernel.config.fill_chunks
        # Copies for the next steps go first: copies end in the order in which they were started.
        for stream in sorted(self.streams.present(), key=lambda stream: stream.reuse_distance):
            stream.ring.fetch_next(number, self.schedule.steps)
        for stream in self.streams.present():
            # In the first step these are waited for where they are needed.
            later = stream in self.factors or (fill_chunks > 1 and stream in self.late)
            first_too = number > 0 if later else True
            stream.ring.wait_if((number % stream.reuse_distance == 0) & first_too, number)
        if fill_chunks == 1:
            for side, stream in enumerate(self.factors):
                pl.when(number == 0)(stream.fill_chunk(0, 1, self.fill_sem.at[side, 0]).wait)
        self._compute(number)
        return carry

    def _compute(self, number: Any) -> None:
        schedule, config = self.schedule, self.kernel.config
        grid_k = schedule.steps_k
        index = schedule.tile_index(number, quotient)
        tile = quotient(number, grid_k)
        refs = self.refs.map(lambda ref, stream: ref if stream is None else stream.ref(number), self.streams)
        outs = tuple(out.vmem.at[tile % SLOTS] for out in self.outs)
        if schedule.output_tiles > SLOTS:
            self._stored.reserve(tile, when=index.kk == 0)
        is_last = number == schedule.steps - 1

        def stored(subtile: Subtile) -> None:
            @pl.when(is_last)
            def _store() -> None:
                for copy in self._stores(subtile, schedule.output_tiles - 1):
                    copy.start()

        step(
            index,
            refs,
            outs,
            self.scratch,
            spec=self.kernel.spec,
            functions=self.kernel.functions,
            config=config,
            stored=stored,
            first=self._first if config.fill_chunks > 1 else None,
        )

        self._stored.start_if((index.kk == grid_k - 1) & jnp.logical_not(is_last), tile)

    def _first(self, lhs: Operand, rhs: Operand, sums_vmem: tuple[Any, ...]) -> None:
        fill_chunks = self.kernel.config.fill_chunks

        def add(number: Any) -> None:
            for side, stream in enumerate(self.factors):
                stream.fill_chunk(number, fill_chunks, self.fill_sem.at[side, number]).wait()
            part_lhs, part_rhs = (
                operand.part(*stream.along_k(number, fill_chunks))
                for operand, stream in zip((lhs, rhs), self.factors[:2], strict=True)
            )

            def one(at: Any) -> None:
                subtile = Subtile.number(at, self.kernel.config)
                for added, sum_vmem in zip(
                    multiply(part_lhs, part_rhs, subtile, self.kernel.spec), sums_vmem, strict=True
                ):
                    so_far = sum_vmem[subtile.rows, subtile.columns]
                    total = jnp.where(number == 0, jnp.zeros_like(added), so_far) + added
                    sum_vmem[subtile.rows, subtile.columns] = total

            loop(self.kernel.config.subtiles, one)

        loop(fill_chunks, add)
        for stream in self.late:
            stream.ring.wait(0)

    def _stores(self, part: Subtile, tile: Any) -> list[Any]:
        index = self.schedule.tile_index(tile * self.schedule.steps_k, quotient)
        return [out.copy(part, tile, index) for out in self.outs]
