"""What the streamed kernel moves: the order of its steps, inputs that come by blocks, outputs that leave by slices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.step import Place
from systolic.kernels.subtiles import Slice, quotient, times
from systolic.schedule import Dimension, KernelConfig
from systolic.spec import MatmulSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of steps: one dimension of the output outermost, then the other, then k."""

    grid_order: Dimension
    inner: Dimension
    counts: dict[Dimension, int]

    @classmethod
    def of(cls, spec: MatmulSpec, config: KernelConfig) -> Order:
        """As the configuration says."""
        grid_m, grid_n, grid_k = config.tiles.grid(spec)
        inner: Dimension = "n" if config.grid_order == "m" else "m"
        return cls(grid_order=config.grid_order, inner=inner, counts={"m": grid_m, "n": grid_n, "k": grid_k})

    @property
    def steps(self) -> int:
        """Of the whole product."""
        return math.prod(self.counts.values())

    @property
    def runs(self) -> int:
        """Blocks of the output."""
        return self.counts["m"] * self.counts["n"]

    def period(self, along: tuple[Dimension | None, Dimension | None]) -> int:
        """Steps for which a block along these dimensions stays."""
        changing = {dimension for dimension in along if dimension is not None and self.counts[dimension] > 1}
        if "k" in changing:
            return 1
        if self.inner in changing:
            return self.counts["k"]
        return self.counts["k"] * self.counts[self.inner] if self.grid_order in changing else self.steps

    def place(self, number: Any) -> Place:
        """The place of a step; along a dimension of one block it is known while the kernel is traced."""
        run, kk = quotient(number, self.counts["k"]), number % self.counts["k"]
        at: dict[Dimension, Any] = {"k": kk}
        at |= {self.grid_order: quotient(run, self.counts[self.inner]), self.inner: run % self.counts[self.inner]}
        known = {dimension: 0 if self.counts[dimension] == 1 else where for dimension, where in at.items()}
        return Place(i=known["m"], j=known["n"], kk=known["k"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """An input that comes by blocks. Its block number f is used in the steps from f · period on."""

    hbm: Any
    vmem: Any  # [buffers, *shape]
    sem: Any  # [buffers]
    shape: tuple[int, int]
    along: tuple[Dimension | None, Dimension | None]
    period: int
    buffers: int

    def slot(self, number: Any) -> Any:
        """Which buffer holds the block of a step."""
        return quotient(number, self.period) % self.buffers

    def block(self, number: Any) -> Any:
        """The block of a step."""
        return self.vmem.at[self.slot(number)]

    def copy(self, number: Any, order: Order) -> Any:
        """The copy of a step's block."""
        rows, columns = self._at(order.place(number))
        slot = self.slot(number)
        return pltpu.make_async_copy(self.hbm.at[rows, columns], self.vmem.at[slot], self.sem.at[slot])

    def piece(self, number: Any, fill_chunks: int, sem: Any) -> Any:
        """The copy of a piece along k of the first step's block."""
        at = self.along_k(number, fill_chunks)
        return pltpu.make_async_copy(self.hbm.at[at], self.vmem.at[(0, *at)], sem)

    def along_k(self, number: Any, fill_chunks: int) -> tuple[Any, Any]:
        """Rows and columns of a piece along k."""
        axis = self.along.index("k")
        size = self.shape[axis] // fill_chunks
        at: list[Any] = [pl.ds(0, side) for side in self.shape]
        at[axis] = pl.ds(times(number, size), size)
        return at[0], at[1]

    def _at(self, place: Place) -> tuple[Any, Any]:
        named = {"m": place.i, "n": place.j, "k": place.kk, None: 0}
        rows, columns = (
            pl.ds(times(named[dimension], size), size) for dimension, size in zip(self.along, self.shape, strict=True)
        )
        return rows, columns


@dataclass(frozen=True, slots=True)
class Output:
    """An output: two tiles in VMEM, whose slices are copied out one by one."""

    hbm: Any
    vmem: Any  # [2, tile_m, tile_n]
    sem: Any  # [2]
    tile_m: int
    tile_n: int

    def copy(self, piece: Slice, run: Any, place: Place) -> Any:
        """The copy of a part of the block number `run`."""
        rows, columns = piece.moved(times(place.i, self.tile_m), times(place.j, self.tile_n))
        slot = run % 2
        return pltpu.make_async_copy(
            self.vmem.at[slot, piece.rows, piece.columns], self.hbm.at[rows, columns], self.sem.at[slot]
        )
