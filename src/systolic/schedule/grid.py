"""The order of a kernel's steps, and the steps for which a block stays. Nothing else defines them.

Kernels, traffic, and the times of `systolic.cost` all use it. A block is fetched when its index differs from the index
in the step before (source: Pallas' pipelining rules, jax.dev "TPU Pipelining").
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from systolic.schedule.blocks import Loop
from systolic.schedule.config import GridOrder, KernelConfig
from systolic.spec import MatmulSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TileIndex:
    """The blocks that a step works on: row `i` and column `j` of blocks of the output, and block `kk` along k."""

    i: Any
    j: Any
    kk: Any

    def along(self, dimension: str | None) -> Any:
        """Return the number of the block along a dimension; 0 if all of an array is one block."""
        return {"m": self.i, "n": self.j, "k": self.kk, None: 0}[dimension]


@dataclass(frozen=True, slots=True)
class GridSchedule:
    """The loops over a grid, the outermost first: the batch, both dimensions of the output, and k.

    Counts are numbers, or arrays of them for many configurations at a time.
    """

    loops: tuple[tuple[Loop, Any], ...]

    @classmethod
    def of(cls, spec: MatmulSpec, config: KernelConfig) -> GridSchedule:
        grid_m, grid_n, grid_k = config.tiles.grid(spec)
        return cls.over(config.grid_order, m=grid_m, n=grid_n, k=grid_k, batch=spec.batch)

    @classmethod
    def over(cls, grid_order: GridOrder, *, m: Any, n: Any, k: Any, batch: Any = 1) -> GridSchedule:
        loops: dict[Loop, Any] = {"batch": batch, "m": m, "n": n, "k": k}
        order: tuple[Loop, ...] = ("batch", "m", "n", "k") if grid_order == "m" else ("batch", "n", "m", "k")
        return cls(tuple((loop, loops[loop]) for loop in order))

    def shared_by(self, cores: int) -> tuple[GridSchedule, int]:
        """Return the part of the core with the most steps, and the number of cores that have work.

        The compiler has cores share the first loop that they can share evenly, or else the first with several rounds.
        """
        several = [at for at, (loop, count) in enumerate(self.loops) if loop != "k" and count > 1] or [0]
        shared = next((at for at in several if self.loops[at][1] % cores == 0), several[0])
        loop, count = self.loops[shared]
        cores = min(cores, count)
        return GridSchedule((*self.loops[:shared], (loop, -(-count // cores)), *self.loops[shared + 1 :])), cores

    @property
    def steps(self) -> Any:
        return math.prod(count for _, count in self.loops)

    @property
    def steps_k(self) -> Any:
        """The number of steps of an output tile."""
        return self.loops[-1][1]

    @property
    def steps_inner(self) -> Any:
        """The number of steps until the outer dimension of the output advances."""
        return self.loops[-2][1] * self.steps_k

    @property
    def output_tiles(self) -> Any:
        """The number of tiles of the output, each made in `steps_k` steps."""
        return self.steps // self.steps_k

    def count(self, loop: Loop) -> Any:
        return dict(self.loops)[loop]

    def fetches(self, along: Collection[Loop | None]) -> Any:
        """Return the number of block fetches of an array that lies along these dimensions."""
        fetched, changes = 1, False
        for loop, count in reversed(self.loops):
            changes = changes | ((count > 1) & (loop in along))
            fetched = fetched * count**changes  # without a branch, for counts that are arrays
        return fetched

    def reuse_steps(self, along: Collection[Loop | None]) -> Any:
        """Return the number of steps for which a block of such an array stays: its reuse distance."""
        return self.steps // self.fetches(along)

    def tile_index(self, step: Any, quotient: Callable[[Any, int], Any] = operator.floordiv) -> TileIndex:
        """Return the blocks of a step of one product; along a dimension of one block they are known at trace time."""
        _, (outer, _), (inner, count_inner), (_, steps_k) = self.loops
        output_tile = quotient(step, steps_k)
        at = {"k": step % steps_k, outer: quotient(output_tile, count_inner), inner: output_tile % count_inner}
        indices = {loop: 0 if count == 1 else at[loop] for loop, count in self.loops[1:]}
        return TileIndex(i=indices["m"], j=indices["n"], kk=indices["k"])
