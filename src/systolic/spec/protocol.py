"""What every kind of product says of itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Spec(Protocol):
    """What is computed: a frozen dataclass of numbers, names and such dataclasses, which can be hashed."""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        ...

    @property
    def passes(self) -> int:
        """How often the matrix unit goes over the operands."""
        ...

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes the operands."""
        ...

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        """Return the dtype in which a chip multiplies the operands.

        Args:
          dtypes: those that the chip's matrix units take.
        """
        ...

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes that have to cross HBM at the least."""
        ...
