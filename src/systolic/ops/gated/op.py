"""The op of gated products, and of the products of their gradients."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.ops.gated.spec import GatedSpec
from systolic.ops.matmul.op import MatmulOp
from systolic.ops.op_programs import RacedPrograms
from systolic.spec import MatmulSpec, Pairing

_PAIRINGS: dict[Pairing | None, str] = {
    "gated": "times a second product",
    "added": "two products added",
    "apart": "two products",
}


class GatedOp(MatmulOp):
    """`systolic.gated_matmul`: two products by the kernels of `matmul`, with its plan, search and arithmetic."""

    name = "gated"
    spec_type = GatedSpec

    def words(self, spec: MatmulSpec) -> tuple[str, str, str]:
        sizes, dtypes, fused = super().words(spec)
        layout = "side by side" if spec.side_by_side else ""
        return sizes, dtypes, ", ".join(filter(None, (fused, _PAIRINGS[spec.pairing], layout)))

    def raced(self, spec: MatmulSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.gated.programs import raced  # needs JAX, which `import systolic` does not import

        return raced(spec, chip)
