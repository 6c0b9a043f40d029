"""The matrices that a kernel on a ring multiplies by: floats, or codes with scales that it reads as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from systolic.ops.grouped.spec import pushed_dtype
from systolic.schedule.buffers import VmemBuffer
from systolic.schedule.lanes import in_lanes
from systolic.spec import dtype_bytes, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixForm:
    """The form of an array of matrices, [experts, k, n].

    Attributes:
      dtype: of the floats or codes.
      block: rows of a column that share a scale, a divisor of k; None: there are no scales.
      scale_columns: columns that share scales, 1 or 128.
    """

    dtype: str
    block: int | None = None
    scale_columns: int = 1

    @classmethod
    def of(cls, weights: Any) -> MatrixForm:
        """Return the form of `ops.grouped.codes.Weights`, whose scales are of one or both of its arrays."""
        dtype, scale = weights.rhs.dtype.name, weights.scale
        if scale is None:
            return cls(dtype=dtype)
        _, k, n = weights.rhs.shape
        blocks = scale.shape[1] // (1 if weights.up is None else 2)
        return cls(dtype=dtype, block=k // blocks, scale_columns=n // scale.shape[2])

    def is_multiplied(self, dtype: str, depth: int) -> bool:
        """True if a kernel multiplies rows of a dtype by `depth` rows of the matrices at a time."""
        if self.block is None:
            return self.dtype == dtype
        return depth % self.block == 0 or self.block % depth == 0

    def scale_rows(self, depth: int) -> int:
        """Return the rows of scales that `depth` rows of a matrix have."""
        return 0 if self.block is None else max(depth // self.block, 1)

    def pushed(self, dtype: str) -> str:
        """Return the dtype of the weights in the matrix units, next to rows of a dtype."""
        return pushed_dtype(dtype, None if self.block is None else self.dtype)

    def bytes(self, k: int, n: int) -> int:
        """Return the bytes of a matrix with its scales."""
        return format_bytes(self.dtype, k * n) + self.scale_rows(k) * n // self.scale_columns * dtype_bytes("float32")

    def scale_buffers(self, rows: int, columns: int, all_columns: int, slots: int) -> tuple[VmemBuffer, ...]:
        """Return the slots for `rows` of scales, and the place for those of single columns.

        Args:
          columns: of a step, whose scales are copied if each column has its own.
          all_columns: whose scales are copied if columns share them.
        """
        if self.block is None:
            return ()
        if self.scale_columns == 1:
            return (in_lanes("scales", (rows, columns), "float32", slots),)
        shared = in_lanes("scales", (rows, all_columns // self.scale_columns), "float32", slots)
        return shared, in_lanes("column scales", (rows, columns), "float32")
