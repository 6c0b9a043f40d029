"""The protocol of every kind of product."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Spec(Protocol):
    """A computation: a frozen, hashable dataclass of numbers, names and other such dataclasses."""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        ...

    @property
    def passes(self) -> int:
        """The number of passes of the matrix unit over the operands."""
        ...

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes the operands."""
        ...

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        """Return the dtype in which a chip multiplies the operands.

        Args:
          dtypes: the dtypes that the chip's matrix units take.
        """
        ...

    @property
    def least_hbm_bytes(self) -> int:
        """The fewest bytes that can cross HBM."""
        ...
