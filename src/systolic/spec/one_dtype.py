"""The common part of specs whose arrays all have one dtype."""

from __future__ import annotations

from collections.abc import Collection

from systolic.spec.dtypes import accumulator_dtype
from systolic.spec.matmul import PASSES, PrecisionName


class OneDtype:
    """A spec with a field `dtype`; without a field `precision` it has JAX's default."""

    __slots__ = ()
    dtype: str
    precision: PrecisionName = "default"

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes both operands."""
        return self.dtype

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        """Return `dtype_multiplied`: a chip without it refuses the product."""
        return self.dtype_multiplied

    @property
    def dtype_accumulator(self) -> str:
        """The dtype of the running sum."""
        return accumulator_dtype(self.dtype)

    @property
    def passes(self) -> int:
        """The number of passes of the matrix unit over the operands."""
        return PASSES[self.precision] if self.dtype == "float32" else 1
