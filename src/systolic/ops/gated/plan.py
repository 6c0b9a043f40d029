"""What planner, store and tuner know of a gated product, and of those of its gradient; none of it needs JAX."""

from __future__ import annotations

from systolic.ops.matmul.plan import MatmulOp
from systolic.spec import GatedSpec, MatmulSpec

_WORDS = {"gated": "{} · up", "added": "two products added", "apart": "two products"}


class GatedOp(MatmulOp):
    """`systolic.gated_matmul`; see `systolic.op.Op`."""

    name = "gated"
    spec_type = GatedSpec

    def words(self, spec: MatmulSpec) -> tuple[str, str, str]:
        """Sizes, dtypes and what becomes of both products."""
        sizes, dtypes, fused = super().words(spec)
        return sizes, dtypes, fused
