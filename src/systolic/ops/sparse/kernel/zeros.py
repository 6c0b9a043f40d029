"""Write zeros where there is no block, from one buffer: in a matrix between the blocks, in a list after them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.registers import part
from systolic.ops.sparse.kernel.lists import BlockList
from systolic.ops.sparse.spec import SparseSpec


class Zeros(NamedTuple):
    """Copies of zeros, started a few lines at a time, so that the products' copies need not wait for all of them."""

    list: BlockList
    out_hbm: Any
    buffers: Any  # the kernel's buffers; `zeros` is as wide as the widest copy
    spec: SparseSpec
    widths: tuple[int, ...]  # of the copies, in blocks: each is half of the previous one, the last is 1

    def prepare(self) -> None:
        self.buffers.zeros[...] = jnp.zeros_like(self.buffers.zeros)
        for number in range(len(self.widths)):
            self.buffers.under_way[number] = 0

    def fill(self, turn: Any, turns: Any) -> None:
        spec = self.spec
        number = spec.lines if spec.dense_out else spec.most_blocks - self.list.begins[spec.lines]
        begin, end = (_share(number, turn + step, turns) for step in (0, 1))

        def one(at: Any, carry: None) -> None:
            if spec.dense_out:
                self._line(at)
            else:
                self._start(0, self.list.begins[spec.lines] + at, 0)
            return carry

        lax.fori_loop(begin, end, one, None)

    def wait(self) -> None:
        for number in range(len(self.widths)):

            def one(_: Any, carry: None, number: int = number) -> None:
                self._copy(number, 0, 0).wait()
                return carry

            lax.fori_loop(0, self.buffers.under_way[number], one, None)

    def _line(self, line: Any) -> None:
        """Fill the gaps of a line: before each block, and after the last one."""
        begin, end = self.list.begins[line], self.list.begins[line + 1]

        def gap(block: Any, place: Any) -> Any:
            gap_end = jnp.where(
                block < end, self.list.places[jnp.minimum(block, self.spec.most_blocks - 1)], self.spec.places
            )
            for number, width in enumerate(self.widths):
                count = lax.div(gap_end - place, jnp.int32(width))

                def one(at: Any, carry: None, number: int = number, width: int = width, place: Any = place) -> None:
                    self._start(number, line, place + at * width)
                    return carry

                lax.fori_loop(0, count, one, None)
                place = place + count * width
            return gap_end + 1

        lax.fori_loop(begin, end + 1, gap, jnp.int32(0))

    def _start(self, number: int, where: Any, place: Any) -> None:
        self._copy(number, where, place).start()
        self.buffers.under_way[number] += 1

    def _copy(self, number: int, where: Any, place: Any) -> Any:
        spec, width = self.spec, self.widths[number]
        columns = spec.block_columns * width
        if spec.dense_out:
            begin = pl.multiple_of(place * spec.block_columns, spec.block_columns)
            zero_columns = pl.ds(begin, columns) if columns < spec.n else slice(None)
            target = self.out_hbm.at[part(where, spec.block_rows, spec.lines), zero_columns]
        else:
            target = self.out_hbm.at[where]
        return pltpu.make_async_copy(
            self.buffers.zeros.at[:, pl.ds(0, columns)], target, self.buffers.zeros_sem.at[number]
        )


def _share(number: Any, turn: Any, turns: Any) -> Any:
    """Return how many of `number` are done before a turn. `number * turn` may exceed 2^31, so it is not computed."""
    share, rest = lax.div(number, turns), lax.rem(number, turns)
    return share * turn + jnp.minimum(turn, rest)
