"""Block-sparse products of a race: patterns of blocks with a fixed seed, forward, and both gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from systolic.bench.cases import Case, sizes
from systolic.ops.sparse.spec import SparseKind, SparseSpec
from systolic.spec import dtype_bytes

Pattern = Literal["random", "banded", "power law", "causal"]

SIZES: tuple[tuple[int, int, int], ...] = ((16384, 16384, 16384), (8192, 4096, 14336))
BLOCKS = (512, 256, 128)
DENSITY = 0.1  # of the docs' example, and the least at which pruned models are usually kept
DENSITIES = (0.05, 0.2, 0.4, 0.8)  # further ones, of one product
_SEED = 1  # another one than a plan's programs have
_EXPONENT = 1.0  # of the power law: the line of rank r has about 1 / r of the blocks of the first one
_PADDED_TO = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSpec:
    """One product, or both gradients of a dsd, with blocks where a pattern has them."""

    planned: SparseSpec  # the product; in a backward pass the forward one
    # Random places; those next to the diagonal; a power law over lines; a lower triangle of elements.
    pattern: Pattern
    backward: bool = False  # compute both gradients, in the blocks and in the dense operand

    @property
    def m(self) -> int:
        return self.planned.m

    @property
    def k(self) -> int:
        return self.planned.k

    @property
    def n(self) -> int:
        return self.planned.n

    @property
    def density(self) -> float:
        """The share of the matrix, or of the result, that blocks hold."""
        return self.planned.density

    @property
    def flops(self) -> int:
        return self.planned.flops * (2 if self.backward else 1)

    @property
    def passes(self) -> int:
        return self.planned.passes

    @property
    def dtype_multiplied(self) -> str:
        return self.planned.dtype

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        return self.planned.multiplied_as(dtypes)

    @property
    def least_hbm_bytes(self) -> int:
        """A backward pass reads blocks, the dense operand and the cotangent, and writes both gradients."""
        forward, planned = self.planned.least_hbm_bytes, self.planned
        return 2 * forward - planned.m * planned.n * dtype_bytes(planned.dtype_out) if self.backward else forward

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the blocks, sorted and padded."""
        planned = self.planned
        return _places(self.pattern, planned.grid_rows, planned.grid_columns, planned.blocks, planned.most_blocks)


@functools.lru_cache(maxsize=64)
def _places(pattern: Pattern, rows: int, columns: int, blocks: int, most_blocks: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(_SEED)
    row, column = np.indices((rows, columns))
    if pattern == "causal":
        present = row * columns >= column * rows
    else:
        if pattern == "banded":  # nearest to the diagonal first
            order = np.abs(row * columns - column * rows) + 0.5 * random.random((rows, columns))
        else:
            weight = np.ones(rows) if pattern == "random" else 1 / (1 + random.permutation(rows)) ** _EXPONENT
            # The smallest of exponential times with such rates are a draw with such weights without repetition.
            order = random.exponential(size=(rows, columns)) / weight[:, None]
        present = order <= np.partition(order.ravel(), blocks - 1)[blocks - 1]
    positions = np.nonzero(present)
    padding = most_blocks - len(positions[0])
    filled = np.pad(positions[0], (0, padding), constant_values=rows), np.pad(positions[1], (0, padding))
    return filled[0].astype(np.int32), filled[1].astype(np.int32)


def sparse(dtype: str) -> Iterator[Case]:
    """Yield all sizes of blocks with all patterns, other kinds and densities, masks, and gradients."""
    if dtype != "bfloat16":
        return
    for (m, k, n), block in itertools.product(SIZES, BLOCKS):
        patterns: tuple[Pattern, ...] = ("random", "banded", "power law") if block != 256 else ("random",)
        for pattern in patterns:
            yield _case(f"{block}²", f"dsd {pattern}", _spec("dsd", m, k, n, block, DENSITY, dtype), pattern)
    m, k, n = SIZES[0]
    for block, kind in itertools.product(BLOCKS, ("dds", "sdd")):
        yield _case(f"{kind}", f"{kind} random", _spec(kind, m, k, n, block, DENSITY, dtype), "random")
    for density, block in itertools.product(DENSITIES, BLOCKS):
        yield _case("dense", "dsd random", _spec("dsd", m, k, n, block, density, dtype), "random")
    for size, block in itertools.product((4096, 16384), (512, 256)):
        grid = size // block
        causal = _spec("sdd", size, size, size, block, (grid + 1) / (2 * grid), dtype, dense_out=True)
        yield _case("mask", "causal", causal, "causal")
        banded = _spec("sdd", size, size, size, block, 0.25, dtype, dense_out=True)
        yield _case("mask", "banded", banded, "banded")
    for block in BLOCKS:
        yield _case("backward", "gradients", _spec("dsd", m, k, n, block, DENSITY, dtype), "random", backward=True)


def _spec(
    kind: SparseKind, m: int, k: int, n: int, block: int, density: float, dtype: str, *, dense_out: bool = False
) -> SparseSpec:
    rows, columns = {"dsd": (m, k), "dds": (k, n), "sdd": (m, n)}[kind]
    blocks = round(density * (rows // block) * (columns // block))
    return SparseSpec(
        kind=kind,
        m=m,
        k=k,
        n=n,
        block_rows=block,
        block_columns=block,
        blocks=blocks,
        most_blocks=-(-blocks // _PADDED_TO) * _PADDED_TO,
        dtype=dtype,
        dtype_out=dtype,
        dense_out=dense_out,
    )


def _case(group: str, what: str, spec: SparseSpec, pattern: Pattern, *, backward: bool = False) -> Case:
    name = f"{what} {spec.block_rows}² {spec.density:.2f} {sizes(spec.m, spec.k, spec.n)}"
    planned = PatternSpec(planned=spec, pattern=pattern, backward=backward)
    series = f"blocks of {spec.block_rows}²" if what == "dsd random" else ""
    return Case(suite="sparse", group=group, name=name, spec=planned, series=series)
