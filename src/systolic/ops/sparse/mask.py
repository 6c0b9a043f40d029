"""`systolic.BlockMask`: the wanted blocks of a product."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from systolic.ops.sparse.array import BlockSparse
from systolic.ops.sparse.places import require_mask, sorted_places, tiled, two_sizes, wanted_places, whole_number
from systolic.ops.sparse.spec import BlockSparseError

if TYPE_CHECKING:
    from jax import Array
    from jaxtyping import Bool

_Sizes = tuple[int, int]
_Band = tuple[int | None, int | None]  # the lowest and the highest diagonal, column − row


@dataclass(frozen=True, slots=True, eq=False, init=False)
class BlockMask:
    """The blocks of a matrix that are wanted, and a band of diagonals within them; or of each matrix of a batch.

    It is a pytree of two arrays. `from_mask`, `causal`, `banded` and `of` make it. The constructor checks and sorts
    rows and columns as `BlockSparse` does, and treats traced ones in the same way.

    Attributes:
      rows, columns: int32 [..., most blocks], as `BlockSparse` has them: sorted, and a row past the end is padding.
      shape: of the matrix.
      block: rows and columns of a block.
      lower, upper: diagonals, column − row; a dense result is zero outside of them. None: there is no such limit.

    Raises:
      BlockSparseError: as the constructor of `BlockSparse`; or a diagonal is not an integer.
    """

    rows: Any
    columns: Any
    shape: tuple[int, int]
    block: tuple[int, int]
    lower: int | None = None
    upper: int | None = None

    def __init__(
        self,
        rows: Any,
        columns: Any,
        shape: tuple[int, int],
        block: tuple[int, int],
        lower: int | None = None,
        upper: int | None = None,
    ) -> None:
        _register()
        shape, block, grid = tiled(shape, block)
        _, rows, columns = sorted_places(rows, columns, grid)
        self._set(rows, columns, shape, block, _diagonal(lower, "lower"), _diagonal(upper, "upper"))

    def _set(self, *values: Any) -> BlockMask:
        for name, value in zip(("rows", "columns", "shape", "block", "lower", "upper"), values, strict=True):
            object.__setattr__(self, name, value)
        return self

    @classmethod
    def of_sorted(cls, rows: Any, columns: Any, shape: _Sizes, block: _Sizes, band: _Band = (None, None)) -> BlockMask:
        """Return the mask of sorted and valid places, without a check."""
        _register()
        return object.__new__(cls)._set(rows, columns, shape, block, *band)

    @classmethod
    def from_mask(
        cls,
        mask: Bool[Array | np.ndarray, "*batch rows columns"],
        block: tuple[int, int],
        *,
        most_blocks: int | None = None,
    ) -> BlockMask:
        """Return the true elements of a mask, one for each block.

        Args:
          most_blocks: room in the list. None: the most true elements, whose number must then be known.

        Raises:
          BlockSparseError: the mask is not an array, or `block` not a pair of sizes; the mask is traced and
            `most_blocks` is missing, or it is known and has more.
        """
        require_mask(mask)
        block = two_sizes(block, "block", 1)
        shape, block, _ = tiled((mask.shape[-2] * block[0], mask.shape[-1] * block[1]), block)
        return cls.of_sorted(*wanted_places(mask, most_blocks), shape, block)

    @classmethod
    def of(cls, matrix: BlockSparse) -> BlockMask:
        """Return the places where a matrix has blocks.

        Raises:
          BlockSparseError: it is not a `BlockSparse`.
        """
        if not isinstance(matrix, BlockSparse):
            raise BlockSparseError(f"a {type(matrix).__name__} is not a BlockSparse; use BlockMask.from_mask")
        return cls.of_sorted(matrix.rows, matrix.columns, matrix.shape, matrix.block)

    @classmethod
    def causal(cls, shape: tuple[int, int], block: tuple[int, int]) -> BlockMask:
        """Return the lower triangle with the diagonal.

        Raises:
          BlockSparseError: blocks do not tile the shape, or a number is not a whole one.
        """
        return cls.banded(shape, block, None, 0)

    @classmethod
    def banded(cls, shape: tuple[int, int], block: tuple[int, int], lower: int | None, upper: int | None) -> BlockMask:
        """Return the elements whose column − row is from `lower` to `upper`, both included.

        Raises:
          BlockSparseError: blocks do not tile the shape, or a number is not a whole one.
        """
        lower, upper = _diagonal(lower, "lower"), _diagonal(upper, "upper")
        shape, block, grid = tiled(shape, block)
        rows, columns = (np.arange(number) * size for number, size in zip(grid, block, strict=True))
        # A block's upper right corner has the highest diagonal, its lower left corner the lowest.
        highest, lowest = columns + block[1] - 1 - rows[:, None], columns - (rows[:, None] + block[0] - 1)
        blocks = np.ones(highest.shape, bool)
        if lower is not None:
            blocks &= highest >= lower
        if upper is not None:
            blocks &= lowest <= upper
        return cls.of_sorted(*wanted_places(blocks, None), shape, block, (lower, upper))

    @property
    def batch(self) -> tuple[int, ...]:
        """The number of matrices along each dimension of the batch; () for one matrix, or one for all."""
        return tuple(self.rows.shape[:-1])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return self.shape[0] // self.block[0], self.shape[1] // self.block[1]


def _diagonal(value: Any, name: str) -> int | None:
    return None if value is None else whole_number(value, name, None, None)


@functools.cache
def _register() -> None:
    import jax

    key = jax.tree_util.GetAttrKey
    fields = ("shape", "block", "lower", "upper")

    def unflatten(static: tuple[Any, ...], children: Iterable[Any]) -> BlockMask:
        (rows, columns), (shape, block, lower, upper) = children, static
        return BlockMask.of_sorted(rows, columns, shape, block, (lower, upper))

    def flat(mask: BlockMask) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (mask.rows, mask.columns), tuple(getattr(mask, name) for name in fields)

    def flat_with_keys(mask: BlockMask) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, static = flat(mask)
        return ((key("rows"), children[0]), (key("columns"), children[1])), static

    jax.tree_util.register_pytree_with_keys(BlockMask, flat_with_keys, unflatten, flat)
