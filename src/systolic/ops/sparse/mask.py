"""`systolic.BlockMask`: which blocks of a product are wanted."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from systolic.ops.sparse.array import BlockSparse
from systolic.ops.sparse.places import tiled, wanted_places

if TYPE_CHECKING:
    from jax import Array
    from jaxtyping import Bool


@dataclass(frozen=True, slots=True, eq=False)
class BlockMask:
    """The blocks of a matrix that are wanted, and a band of diagonals within them; or of each matrix of a batch.

    It is a pytree of two arrays. `from_mask`, `causal`, `banded` and `of` make it.

    Attributes:
      rows, columns: int32 [..., most blocks], as `BlockSparse` has them: sorted, and a row past the end is padding.
      shape: of the matrix.
      block: rows and columns of a block.
      lower, upper: diagonals, column − row, outside of which a dense result is zero; None: there is no such limit.
    """

    rows: Any
    columns: Any
    shape: tuple[int, int]
    block: tuple[int, int]
    lower: int | None = None
    upper: int | None = None

    def __post_init__(self) -> None:
        _register()

    @classmethod
    def from_mask(
        cls,
        mask: Bool[Array | np.ndarray, "*batch rows columns"],
        block: tuple[int, int],
        *,
        most_blocks: int | None = None,
    ) -> BlockMask:
        """The true elements of a mask, one for each block.

        Args:
          most_blocks: room in the list. None: as many as are true at most, which has to be known then.

        Raises:
          BlockSparseError: the mask is traced and `most_blocks` is not given, or it is known and has more.
        """
        rows, columns = wanted_places(mask, most_blocks)
        return cls(rows, columns, (mask.shape[-2] * block[0], mask.shape[-1] * block[1]), block)

    @classmethod
    def of(cls, matrix: BlockSparse) -> BlockMask:
        """The places where a matrix has blocks."""
        return cls(matrix.rows, matrix.columns, matrix.shape, matrix.block)

    @classmethod
    def causal(cls, shape: tuple[int, int], block: tuple[int, int]) -> BlockMask:
        """The lower triangle with the diagonal.

        Raises:
          BlockSparseError: blocks do not tile the shape.
        """
        return cls.banded(shape, block, None, 0)

    @classmethod
    def banded(cls, shape: tuple[int, int], block: tuple[int, int], lower: int | None, upper: int | None) -> BlockMask:
        """Elements whose column − row is from `lower` to `upper`, both included.

        Raises:
          BlockSparseError: blocks do not tile the shape.
        """
        rows, columns = (np.arange(number) * size for number, size in zip(tiled(shape, block), block, strict=True))
        # Of a block's corners, that on the upper right has the highest diagonal, that on the lower left the lowest.
        highest, lowest = columns + block[1] - 1 - rows[:, None], columns - (rows[:, None] + block[0] - 1)
        wanted = np.ones(highest.shape, bool)
        if lower is not None:
            wanted &= highest >= lower
        if upper is not None:
            wanted &= lowest <= upper
        return cls(*wanted_places(wanted, None), shape, block, lower, upper)

    @property
    def batch(self) -> tuple[int, ...]:
        """How many matrices it is of, along each dimension; () for one, or one for all."""
        return tuple(self.rows.shape[:-1])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return self.shape[0] // self.block[0], self.shape[1] // self.block[1]


@functools.cache
def _register() -> None:
    import jax

    key = jax.tree_util.GetAttrKey
    kept = ("shape", "block", "lower", "upper")

    def unflatten(static: tuple[Any, ...], children: Iterable[Any]) -> BlockMask:
        return BlockMask(*children, *static)

    def flat(one: BlockMask) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (one.rows, one.columns), tuple(getattr(one, name) for name in kept)

    def flat_with_keys(one: BlockMask) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, static = flat(one)
        return ((key("rows"), children[0]), (key("columns"), children[1])), static

    jax.tree_util.register_pytree_with_keys(BlockMask, flat_with_keys, unflatten, flat)
