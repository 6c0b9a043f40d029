"""A layer of experts of a race, with gradients or without."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.ops.moe.spec import MoeSpec
from systolic.spec import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec(MoeSpec):
    """A layer; with `backward` the gradients of x, logits and the three matrices are results too."""

    backward: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products; the backward pass has two more of each."""
        return (3 if self.backward else 1) * super(LayerSpec, self).flops

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of all arrays, once; in the backward pass all are read once more, and as many gradients written.

        The result's cotangent is read in its place.
        """
        forward = super(LayerSpec, self).least_hbm_bytes
        if not self.backward:
            return forward
        return 3 * forward - dtype_bytes(self.dtype) * self.m * self.k
