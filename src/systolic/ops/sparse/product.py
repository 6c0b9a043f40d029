"""The static parameters of a block-sparse product, the places of its blocks, and its spec for some operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import ActivatedProduct, Backend
from systolic.ops.sparse.spec import SparseKind, SparseSpec
from systolic.spec import PrecisionName

# Fields that a product and its spec have in common.
_OF_SPEC = ("kind", "precision", "dtype_out", "transpose_sparse", "transpose_rhs", "dense_out", "activation")


class Places(NamedTuple):
    """The places of stored blocks, sorted by rows; int32 [most blocks] each, padding at the end."""

    rows: Any
    columns: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseProduct(ActivatedProduct):
    """All static parameters of a product except its dense operands' shapes; hashable.

    Attributes:
      shape: of the sparse matrix as it is stored.
      block: rows and columns of a block as it is stored.
      expected: number of blocks, as far as it is known; the planner chooses tiles for it.
      lower, upper: diagonals, column − row; a dense result is zero outside of them.
    """

    kind: SparseKind
    shape: tuple[int, int]
    block: tuple[int, int]
    expected: int
    precision: PrecisionName
    transpose_sparse: bool = False
    transpose_rhs: bool = False
    dense_out: bool = False
    lower: int | None = None
    upper: int | None = None

    @property
    def grid(self) -> tuple[int, int]:
        return self.shape[0] // self.block[0], self.shape[1] // self.block[1]

    def spec(self, sweep: int, dtype: str, most_blocks: int, *, bias: bool = False) -> SparseSpec:
        """Return the spec for the planner; `sweep` is the size that the sparse matrix does not have."""
        shape, block = ((sizes[::-1] if self.transpose_sparse else sizes) for sizes in (self.shape, self.block))
        rows, columns = shape
        sizes = {
            "dsd": {"m": rows, "k": columns, "n": sweep},
            "dds": {"m": sweep, "k": rows, "n": columns},
            "sdd": {"m": rows, "k": sweep, "n": columns},
        }
        return SparseSpec(
            **sizes[self.kind],
            block_rows=block[0],
            block_columns=block[1],
            blocks=max(min(self.expected, most_blocks, self.grid[0] * self.grid[1]), 1),
            most_blocks=most_blocks,
            dtype=dtype,
            diagonals=self.lower is not None or self.upper is not None,
            bias=bias,
            **{name: getattr(self, name) for name in _OF_SPEC},
        )

    @staticmethod
    def of(spec: SparseSpec, backend: Backend) -> SparseProduct:
        """Return the product that a spec describes."""
        _, function = activation_of(spec.activation or None)
        return SparseProduct(
            backend=backend,
            shape=spec.stored_shape,
            block=spec.stored_block,
            expected=spec.blocks,
            function=function,
            **{name: getattr(spec, name) for name in _OF_SPEC},
        )
