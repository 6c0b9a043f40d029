"""The list of blocks, sorted by lines in SMEM, kernels and loops over it, and the panels of a dense operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.launch import HbmKernel
from systolic.kernels.registers import part
from systolic.ops.sparse.spec import SparseSpec


class Places(NamedTuple):
    """The places of blocks in SMEM, sorted by rows; padding has a row past the end."""

    rows: Any  # int32 [most blocks]
    columns: Any


class ListBuffers(NamedTuple):
    begins: Any  # int32 [lines + 2]
    places: Any  # int32 [most blocks]; None: lines are in the order of the blocks
    order: Any
    next: Any  # int32 [lines + 1]


def list_buffers(spec: SparseSpec) -> ListBuffers:
    def words(number: int) -> Any:
        return pltpu.SMEM((number,), jnp.int32)

    by_columns = (spec.most_blocks, spec.most_blocks, spec.lines + 1) if spec.is_by_columns else ()
    return ListBuffers(words(spec.lines + 2), *(map(words, by_columns) if by_columns else (None, None, None)))


def launch(
    kind: Callable[..., Any],
    operands: Any,
    places: Any,
    shape: tuple[int, ...],
    buffers: Any,
    kernel: HbmKernel[SparseSpec, Any],
    *,
    from_hbm: Sequence[str],
    cores: int,
    **static: Any,
) -> Array:
    """Run a kernel over listed blocks on each core, and return the output, which it copies to HBM itself.

    Args:
      kind: makes the kernel's body from the refs, the list of blocks, and `static`; its method `run` runs it.
      places: block specs of all operands.
      shape: the output's.
      buffers: scratch shapes; the field `list` has the shapes for the list.
      from_hbm: names of the operands that the kernel copies from HBM itself.
    """

    spec = kernel.spec

    def body(refs: Any, out_hbm: Any, buffers: Any) -> None:
        blocks, shared = listed(refs.places, buffers.list, spec), {"spec": spec, "schedule": kernel.schedule}
        kind(refs=refs, out_hbm=out_hbm, buffers=buffers, list=blocks, cores=cores, **shared, **static).run()

    return kernel.launch(
        body,
        operands,
        places,
        shape,
        from_hbm=from_hbm,
        scratch_shapes=(buffers,),
        grid=(cores,),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=kernel.vmem_limit_bytes, dimension_semantics=("parallel" if cores > 1 else "arbitrary",)
        ),
        name=f"systolic_{spec.kind}_{spec.dtype}_{spec.m}_{spec.k}_{spec.n}",
    )


class BlockList(NamedTuple):
    """Blocks by lines; see `schedule.sparse`."""

    begins: Any  # the first block of each line, and how many blocks there are
    places: Any  # the place of each block in its line
    order: Any  # the number of each in the array of blocks; None: they are in this order


def listed(places: Places, buffers: ListBuffers, spec: SparseSpec) -> BlockList:
    """Sort the blocks by lines, by counting; scalar code, a few cycles a block."""
    line_of, place_of = places if not spec.is_by_columns else (places.columns, places.rows)
    stored_rows = spec.places if spec.is_by_columns else spec.lines
    lines = spec.lines

    def line_at(block: Any) -> Any:
        return jnp.where(places.rows[block] < stored_rows, line_of[block], lines)

    def clear(line: Any, carry: None) -> None:
        buffers.begins[line] = 0
        return carry

    def count(block: Any, carry: None) -> None:
        buffers.begins[line_at(block) + 1] += 1
        return carry

    def add(line: Any, begin: Any) -> Any:
        begin = begin + buffers.begins[line]
        buffers.begins[line] = begin
        if buffers.next is not None:
            buffers.next[line] = begin
        return begin

    lax.fori_loop(0, lines + 2, clear, None)
    lax.fori_loop(0, spec.most_blocks, count, None)
    lax.fori_loop(0, lines + 1, add, jnp.int32(0))
    if buffers.next is None:
        return BlockList(buffers.begins, place_of, None)

    def put(block: Any, carry: None) -> None:
        line = line_at(block)
        number = buffers.next[line]
        buffers.next[line] = number + 1
        buffers.places[number] = place_of[block]
        buffers.order[number] = block
        return carry

    lax.fori_loop(0, spec.most_blocks, put, None)
    return BlockList(buffers.begins, buffers.places, buffers.order)


class Item(NamedTuple):
    """Neighbors in a line that are multiplied at once."""

    block: Any  # the first one
    count: Any
    is_first: Any  # of its line, or of the chunk's part of the line
    is_last: Any


def over_items(begin: Any, end: Any, joined: int, body: Callable[[Item, Any], Any], carry: Any) -> Any:
    """Call `body` for blocks from `begin` to `end`, about equally many of them at a time; once for none."""
    number = end - begin
    items = jnp.maximum(lax.div(number + (joined - 1), jnp.int32(joined)), 1)
    share = lax.div(number + items - 1, items)

    def item(at: Any, carry: Any) -> Any:
        block = begin + at * share
        return body(Item(block, jnp.minimum(share, end - block), at == 0, at == items - 1), carry)

    return lax.fori_loop(0, items, item, carry)


def with_code_for(count: Any, largest: int, code: Callable[[int], None]) -> None:
    """Make straight code for one block, for two, and so on, and run the code for this number of blocks."""
    for number in range(1, largest + 1):
        pl.when(count == number)(lambda number=number: code(number))


def joined(blocks: list[Array], axis: int) -> Array:
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis)


class Panels(NamedTuple):
    """Panels of a dense operand: one is used while the next one arrives, part by part."""

    source: Any  # in HBM
    target: Any  # [slots, *panel]
    sem: Any  # (slots,)
    axis: int  # of the dense operand, that panels cut
    size: int  # of a panel along it
    grid: int  # panels
    parts: int  # parts in which a panel arrives

    def part_copy(self, number: Any, panel: Any, slot: Any) -> Any:
        across = 1 - self.axis
        columns = part(number, self.target.shape[1 + across] // self.parts, self.parts)
        panel_part = part(panel, self.size, self.grid)
        source = (panel_part, columns) if self.axis == 0 else (columns, panel_part)
        target = (slice(None), columns) if self.axis == 0 else (columns, slice(None))
        return pltpu.make_async_copy(self.source.at[source], self.target.at[(slot, *target)], self.sem.at[slot])

    def due(self, line: Any, lines: Any) -> tuple[Any, Any]:
        """Return the parts whose copies start with a line: all in the first half, so that the last one is in time."""
        begin, end = (jnp.minimum(lax.div(2 * self.parts * (line + step), lines), self.parts) for step in (0, 1))
        return begin, jnp.where(line == lines - 1, self.parts, end)

    def start(self, begin: Any, end: Any, panel: Any, slot: Any) -> None:
        def one(number: Any, carry: None) -> None:
            self.part_copy(number, panel, slot).start()
            return carry

        lax.fori_loop(begin, end, one, None)

    def wait(self, slot: Any) -> None:
        """Wait for all parts of a panel: a copy's semaphore counts bytes."""
        target = self.target.at[slot]
        pltpu.make_async_copy(target, target, self.sem.at[slot]).wait()
