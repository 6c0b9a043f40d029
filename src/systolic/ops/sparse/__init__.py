"""`systolic.sparse_matmul`: products with one matrix that is a list of its blocks."""

from systolic.ops.sparse.api import sparse_matmul
from systolic.ops.sparse.array import BlockSparse
from systolic.ops.sparse.mask import BlockMask
from systolic.ops.sparse.op import SparseOp

__all__ = ["BlockMask", "BlockSparse", "SparseOp", "sparse_matmul"]
