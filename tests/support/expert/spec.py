"""Sizes and dtypes of one expert's gated product."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from systolic.spec import SliceMesh, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """Sizes of the whole product, and the dtype of everything but the number of the expert.

    Attributes:
      slice_mesh: the slice over which n is cut, along all axes of the mesh; None: it runs on one device.
    """

    m: int
    k: int
    n: int
    experts: int
    dtype: str
    slice_mesh: SliceMesh | None = None

    @property
    def devices(self) -> int:
        return 1 if self.slice_mesh is None else math.prod(self.slice_mesh.sizes.values())

    @property
    def columns(self) -> int:
        """Columns of one device."""
        return self.n // self.devices

    @property
    def flops(self) -> int:
        return 2 * 2 * self.m * self.k * self.columns

    @property
    def passes(self) -> int:
        return 1

    @property
    def dtype_multiplied(self) -> str:
        return self.dtype

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        return self.dtype

    @property
    def least_hbm_bytes(self) -> int:
        return dtype_bytes(self.dtype) * (self.m * self.k + 2 * self.k * self.columns + self.m * self.n)

    @property
    def link_bytes(self) -> int:
        """Bytes that one device sends, each column of the others once, as in a ring."""
        return dtype_bytes(self.dtype) * self.m * self.columns * (self.devices - 1)
