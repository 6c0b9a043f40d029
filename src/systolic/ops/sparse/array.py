"""`systolic.BlockSparse`: a matrix as the list of its blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from systolic.ops.sparse.places import (
    each_matrix,
    is_known,
    matrix_of,
    places_by_columns,
    require_array,
    require_mask,
    sorted_places,
    tiled,
    wanted_places,
)
from systolic.ops.sparse.spec import BlockSparseError

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike
    from jaxtyping import Shaped


@dataclass(frozen=True, slots=True, eq=False, init=False)
class BlockSparse:
    """A matrix, or a batch of them, that is zero except some blocks of one size at rows and columns of blocks.

    It is a pytree of three arrays, so it goes through `jit`, `vmap` and `scan`. How many blocks there are may change
    from run to run, up to the length of the arrays: the rest is padding, whose row is the number of rows of blocks.
    Blocks are sorted by rows, then columns; the constructor sorts those in another order once. Matrices of a batch have
    one shape and one length of the arrays, each with its own places of blocks.

    Traced rows and columns are sorted as well, but cannot be checked: a block outside of the matrix becomes padding,
    and so does a block at the place of one before it.

    Attributes:
      blocks: [..., most blocks, block rows, block columns], of any dtype.
      rows, columns: int32 [..., most blocks]: where each block is, counted in blocks.
      shape: of each matrix; blocks have to tile it.

    Raises:
      BlockSparseError: arguments are not arrays, no sizes, or do not fit each other; blocks do not tile the shape; or,
        where rows and columns are known when this is called, one is below zero or past the end, or two blocks have one
        place.
    """

    blocks: Any
    rows: Any
    columns: Any
    shape: tuple[int, int]

    def __init__(self, blocks: Any, rows: Any, columns: Any, shape: tuple[int, int]) -> None:
        _register()
        require_array(blocks, "blocks", 3)
        shape, _, grid = tiled(shape, blocks.shape[-2:])
        order, rows, columns = sorted_places(rows, columns, grid)
        if blocks.shape[:-2] != rows.shape:
            shapes = f"blocks {list(blocks.shape)}, rows {list(rows.shape)}, columns {list(columns.shape)}"
            raise BlockSparseError(f"{shapes}: each block needs a row and a column")
        blocks = blocks if order is None else _in_order(blocks, order)
        self._set(blocks, rows, columns, shape)

    def _set(self, *values: Any) -> BlockSparse:
        for name, value in zip(("blocks", "rows", "columns", "shape"), values, strict=True):
            object.__setattr__(self, name, value)
        return self

    @classmethod
    def of_sorted(cls, blocks: Any, rows: Any, columns: Any, shape: tuple[int, int]) -> BlockSparse:
        """Return the matrix of sorted and valid blocks, without a check."""
        _register()
        return object.__new__(cls)._set(blocks, rows, columns, shape)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self).of_sorted, (self.blocks, self.rows, self.columns, self.shape)

    @classmethod
    def from_dense(
        cls,
        dense: Shaped[Array, "*batch m n"] | ArrayLike,
        block: tuple[int, int],
        mask: Any = None,
        *,
        most_blocks: int | None = None,
    ) -> BlockSparse:
        """Return the blocks of a matrix that a mask selects.

        Args:
          dense: [..., m, n].
          block: rows and columns of a block.
          mask: bool [..., m / rows, n / columns], or one for all. None: blocks with an element that is not zero.
          most_blocks: room in the list. None: the most that a mask selects, which must then be known.

        Raises:
          BlockSparseError: it is not a matrix, blocks do not tile it, the mask is of another shape, or it is traced and
            `most_blocks` is not given, or it is known and selects more.
        """
        import jax.numpy as jnp

        try:
            array: Any = jnp.asarray(dense)
        except (TypeError, ValueError) as error:
            raise BlockSparseError(f"dense is a {type(dense).__name__}, not an array; use jnp.asarray") from error
        if array.ndim < 2:
            raise BlockSparseError(f"an array of shape {list(array.shape)} is not a matrix")
        batch = array.shape[:-2]
        (m, n), (rows, columns), (grid_m, grid_n) = tiled(array.shape[-2:], block)
        cut = array.reshape(*batch, grid_m, rows, grid_n, columns).swapaxes(-3, -2)
        mask = (cut != 0).any((-2, -1)) if mask is None else mask
        require_mask(mask)
        if tuple(mask.shape) not in ((grid_m, grid_n), (*batch, grid_m, grid_n)):
            raise BlockSparseError(f"mask of shape {list(mask.shape)}; the matrix has {grid_m} × {grid_n} blocks")
        full_mask = (np if is_known(mask) else jnp).broadcast_to(mask, (*batch, grid_m, grid_n))
        at_row, at_column = wanted_places(full_mask, most_blocks)

        def chosen(cut: Any, at_row: Any, at_column: Any) -> Any:
            if 0 in (grid_m, grid_n):
                return jnp.zeros((len(at_row), rows, columns), cut.dtype)
            blocks = cut[jnp.minimum(at_row, grid_m - 1), at_column]
            return jnp.where((at_row < grid_m)[:, None, None], blocks, jnp.zeros_like(blocks))

        blocks = each_matrix(chosen, batch)(cut, at_row, at_column)
        return cls.of_sorted(blocks, at_row, at_column, (m, n))

    @classmethod
    def from_bcoo(cls, matrix: Any) -> BlockSparse:
        """Convert a `jax.experimental.sparse.BCOO` whose data are blocks: n_dense = 2, n_sparse = 2, one batch or none.

        After the batch its shape has four dimensions: rows and columns of blocks, and of one block.

        Raises:
          BlockSparseError: it is of another form, or as the constructor.
        """
        if not isinstance(getattr(matrix, "n_batch", None), int):
            raise BlockSparseError(f"a {type(matrix).__name__} is not a BCOO; use from_dense")
        batch = tuple(matrix.shape[: matrix.n_batch])
        if matrix.n_dense != 2 or matrix.n_sparse != 2:
            form = f"n_batch={matrix.n_batch}, n_dense={matrix.n_dense}, shape={list(matrix.shape)}"
            raise BlockSparseError(
                f"a BCOO of {form}; use one of [..., rows, columns, block rows, block columns], n_dense=2"
            )
        grid_m, grid_n, rows, columns = matrix.shape[matrix.n_batch :]
        indices, blocks = matrix.indices, matrix.data
        if batch:  # each of them may be the same for all
            import jax.numpy as jnp

            indices, blocks = (
                jnp.broadcast_to(array, (*batch, *array.shape[len(batch) :])) for array in (indices, blocks)
            )
        indices = np.asarray(indices) if is_known(indices) else indices
        return cls(blocks, indices[..., 0], indices[..., 1], (grid_m * rows, grid_n * columns))

    @classmethod
    def from_bsr(cls, matrix: Any) -> BlockSparse:
        """Convert a `scipy.sparse.bsr_array` or `bsr_matrix`.

        Raises:
          BlockSparseError: it is not such a matrix, or as the constructor: scipy allows duplicates.
        """
        if getattr(matrix, "format", None) != "bsr":
            raise BlockSparseError(f"a {type(matrix).__name__} is not a BSR matrix; use its .tobsr(blocksize=…)")
        rows = np.repeat(np.arange(len(matrix.indptr) - 1, dtype=np.int32), np.diff(matrix.indptr))
        return cls(matrix.data, rows, matrix.indices.astype(np.int32), matrix.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the blocks."""
        return self.blocks.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions of the matrix with its batch."""
        return 2 + len(self.batch)

    @property
    def batch(self) -> tuple[int, ...]:
        """The number of matrices along each dimension of the batch; () for one matrix."""
        return tuple(self.blocks.shape[:-3])

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return tuple(self.blocks.shape[-2:])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return self.shape[0] // self.block[0], self.shape[1] // self.block[1]

    @property
    def most_blocks(self) -> int:
        """Length of the list, padding included."""
        return self.blocks.shape[-3]

    @property
    def T(self) -> BlockSparse:  # noqa: N802  as jax.Array has it
        """The transpose of each matrix: the same blocks turned, in another order."""
        order, rows, columns = places_by_columns(self.rows, self.columns, self.grid)
        return self.of_sorted(
            _in_order(self.blocks, order).swapaxes(-1, -2), rows, columns, (self.shape[1], self.shape[0])
        )

    def with_blocks(self, blocks: Any) -> BlockSparse:
        """Return a matrix with other blocks at the same places, such as those that a derivative is taken in.

        Raises:
          BlockSparseError: they are of another shape.
        """
        require_array(blocks, "blocks", 3)
        if tuple(blocks.shape) != tuple(self.blocks.shape):
            raise BlockSparseError(f"blocks of shape {list(blocks.shape)}; they have to be {list(self.blocks.shape)}")
        return self.of_sorted(blocks, self.rows, self.columns, self.shape)

    def to_dense(self) -> Shaped[Array, "*batch m n"]:
        """Return the whole matrix."""
        import jax.numpy as jnp

        placed = functools.partial(matrix_of, grid=self.grid)
        return each_matrix(placed, self.batch)(jnp.asarray(self.blocks), self.rows, self.columns)

    def to_bcoo(self) -> Any:
        """Return a `jax.experimental.sparse.BCOO` of [..., rows, columns, block rows, block columns], n_dense = 2."""
        import jax.numpy as jnp
        from jax.experimental.sparse import BCOO

        rows = jnp.asarray(self.rows)
        columns = jnp.where(rows < self.grid[0], self.columns, self.grid[1])  # of padding both are past the end
        indices = jnp.stack([rows, columns], -1)
        return BCOO(
            (jnp.asarray(self.blocks), indices),
            shape=(*self.batch, *self.grid, *self.block),
            indices_sorted=True,
            unique_indices=not self._has_padding(),
        )

    def _has_padding(self) -> bool:
        return not is_known(self.rows) or bool(np.any(np.asarray(self.rows) >= self.grid[0]))

    def to_bsr(self) -> Any:
        """Return a `scipy.sparse.bsr_array`, without padding; scipy has to be installed, and the values known.

        Raises:
          BlockSparseError: it is a batch, which scipy does not support.
        """
        from scipy.sparse import bsr_array

        if self.batch:
            raise BlockSparseError(
                f"a batch of {list(self.batch)} is not a BSR matrix; take one of it with jax.tree.map"
            )
        rows = np.asarray(self.rows)
        number = int(np.sum(rows < self.grid[0]))
        begins = np.searchsorted(rows[:number], np.arange(self.grid[0] + 1)).astype(np.int32)
        return bsr_array((np.asarray(self.blocks)[:number], np.asarray(self.columns)[:number], begins), self.shape)


def _in_order(blocks: Any, order: Any) -> Any:
    return each_matrix(lambda blocks, order: blocks[order], tuple(order.shape[:-1]))(blocks, order)


@functools.cache
def _register() -> None:
    """Register the class with JAX at its first instance, so that `import systolic` need not import JAX."""
    import jax

    names = ("blocks", "rows", "columns")

    def unflatten(shape: tuple[int, int], children: Iterable[Any]) -> BlockSparse:
        blocks, rows, columns = children
        return BlockSparse.of_sorted(blocks, rows, columns, shape)  # JAX puts anything there, also what has no shape

    def flat(matrix: BlockSparse) -> tuple[tuple[Any, ...], tuple[int, int]]:
        return (matrix.blocks, matrix.rows, matrix.columns), matrix.shape

    def flat_with_keys(matrix: BlockSparse) -> tuple[tuple[Any, ...], tuple[int, int]]:
        children, shape = flat(matrix)
        keys = map(jax.tree_util.GetAttrKey, names)
        return tuple(zip(keys, children, strict=True)), shape

    jax.tree_util.register_pytree_with_keys(BlockSparse, flat_with_keys, unflatten, flat)
