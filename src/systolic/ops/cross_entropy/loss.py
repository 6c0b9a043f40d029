"""The static parameters of a loss, as its backends share them."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.ops.cross_entropy.spec import CrossEntropySpec, LossKind
from systolic.ops.engine.backend import Computed
from systolic.spec import PrecisionName, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Computed):
    """Statistics of rows of logits, and their gradients."""

    precision: PrecisionName
    soft_cap: float | None
    total: bool  # compute the sum of a row's logits
    kept_bytes: int = 0  # bytes of logits that may stay in memory for the gradients

    def keeps(self, m: int, n: int, dtype: str) -> bool:
        """True if these logits may stay in memory."""
        return m * n * dtype_bytes(dtype) <= self.kept_bytes

    def spec(self, m: int, k: int, n: int, dtype: str, kind: LossKind, *, keep_logits: bool) -> CrossEntropySpec:
        return CrossEntropySpec(
            m=m,
            k=k,
            n=n,
            dtype=dtype,
            kind=kind,
            precision=self.precision,
            soft_cap=self.soft_cap is not None,
            total=self.total,
            keep_logits=keep_logits,
        )
