"""Products with a block-sparse matrix: the left operand, the right operand, or the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.spec.dtypes import SpecError, dtype_bytes
from systolic.spec.matmul import PrecisionName, check_precision, check_sizes
from systolic.spec.one_dtype import OneDtype
from systolic.support.choices import unknown_name

# Which matrix is sparse, as MegaBlocks names it: result, left operand, right operand; d is a dense one.
SparseKind = Literal["dsd", "dds", "sdd"]


class BlockSparseError(SpecError):
    """Blocks that make no matrix: some lie outside, two have one place, or their size does not tile the shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSpec(OneDtype):
    """`lhs[m, k] @ rhs[k, n]`, where one of the three matrices is a list of its blocks.

    - dsd: lhs is sparse.
    - dds: rhs is sparse.
    - sdd: some blocks of the result are wanted.

    Attributes:
      block_rows, block_columns: size of a block of the sparse matrix; they divide its sizes.
      blocks: expected blocks, for which tiles are chosen and work is counted.
      most_blocks: room in the list; the rest is padding.
      transpose_sparse: the blocks of the transpose are stored; of dsd and dds. `block_rows` and `block_columns` are
        sizes in the product.
      transpose_rhs: rhs is stored as [n, k]; of sdd.
      dense_out: the result is a whole matrix, zero where no block is wanted; of sdd.
      diagonals: True if elements outside a band of diagonals are zero too; of `dense_out`.
      bias: True if [n] is added; of dsd and dds.
      activation: the name of a function of the sum and the bias; of dsd and dds.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, a dtype, the kind or the precision is unknown.
      BlockSparseError: a block does not divide the sparse matrix, or there are more blocks than it has places.
    """

    kind: SparseKind
    m: int
    k: int
    n: int
    block_rows: int
    block_columns: int
    blocks: int
    most_blocks: int
    dtype: str
    dtype_out: str
    precision: PrecisionName = "default"
    transpose_sparse: bool = False
    transpose_rhs: bool = False
    dense_out: bool = False
    diagonals: bool = False
    bias: bool = False
    activation: str = ""

    def __post_init__(self) -> None:
        check_sizes(self, "m", "k", "n", "block_rows", "block_columns", "blocks", "most_blocks")
        if self.kind not in ("dsd", "dds", "sdd"):
            raise SpecError(unknown_name("kind=", self.kind, ("dsd", "dds", "sdd")))
        for dtype in (self.dtype, self.dtype_out):
            dtype_bytes(dtype)
        check_precision(self.precision)
        rows, columns = self.sparse_shape
        if rows % self.block_rows or columns % self.block_columns:
            raise BlockSparseError(
                f"blocks of {self.block_rows} × {self.block_columns} do not tile a matrix of {rows} × {columns}; use a "
                "size that divides it, or pad it"
            )
        places = self.grid_rows * self.grid_columns
        if self.blocks > min(self.most_blocks, places):
            raise BlockSparseError(
                f"blocks={self.blocks} of most_blocks={self.most_blocks} in a matrix with {places} places; use a "
                "number up to both"
            )

    @property
    def sparse_shape(self) -> tuple[int, int]:
        """Rows and columns of the sparse matrix."""
        return {"dsd": (self.m, self.k), "dds": (self.k, self.n), "sdd": (self.m, self.n)}[self.kind]

    @property
    def grid_rows(self) -> int:
        """Rows of blocks of the sparse matrix."""
        return self.sparse_shape[0] // self.block_rows

    @property
    def grid_columns(self) -> int:
        """Columns of blocks of the sparse matrix."""
        return self.sparse_shape[1] // self.block_columns

    @property
    def density(self) -> float:
        """The share of the sparse matrix' places that have a block."""
        return self.blocks / (self.grid_rows * self.grid_columns)

    @property
    def lines(self) -> int:
        """The number of lines that the kernels process one after another: rows of blocks, for dds columns."""
        return self.grid_columns if self.kind == "dds" else self.grid_rows

    @property
    def places(self) -> int:
        """The number of blocks that a line has room for."""
        return self.grid_rows if self.kind == "dds" else self.grid_columns

    @property
    def line_size(self) -> int:
        """Rows of a block, for dds columns."""
        return self.block_columns if self.kind == "dds" else self.block_rows

    @property
    def place_size(self) -> int:
        """Elements of a block along its line."""
        return self.block_rows if self.kind == "dds" else self.block_columns

    @property
    def stored_block(self) -> tuple[int, int]:
        """Rows and columns of a block in HBM."""
        rows, columns = self.block_rows, self.block_columns
        return (columns, rows) if self.transpose_sparse else (rows, columns)

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Rows and columns of the sparse matrix in HBM."""
        rows, columns = self.sparse_shape
        return (columns, rows) if self.transpose_sparse else (rows, columns)

    @property
    def is_by_columns(self) -> bool:
        """True if lines are columns of the list, which is sorted by rows."""
        return (self.kind == "dds") != self.transpose_sparse

    @property
    def sweep(self) -> int:
        """The size that the sparse matrix does not have: n of dsd, m of dds, k of sdd."""
        return {"dsd": self.n, "dds": self.m, "sdd": self.k}[self.kind]

    @property
    def flops(self) -> int:
        """Multiplications and additions of the expected blocks."""
        return 2 * self.blocks * self.block_rows * self.block_columns * self.sweep

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of each block once, the parts of dense matrices that it meets, and all of the result."""
        read, out = dtype_bytes(self.dtype), dtype_bytes(self.dtype_out)
        sparse = self.blocks * self.block_rows * self.block_columns
        rows, columns = self.blocks * self.block_rows, self.blocks * self.block_columns  # at most
        if self.kind == "dsd":
            return (sparse + min(self.k, columns) * self.n) * read + self.m * self.n * out
        if self.kind == "dds":
            return (sparse + self.m * min(self.k, rows)) * read + self.m * self.n * out
        dense = (min(self.m, rows) + min(self.n, columns)) * self.k
        return dense * read + (self.m * self.n if self.dense_out else sparse) * out
