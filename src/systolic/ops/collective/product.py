"""The static parameters of a product across chips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from jax import Array

from systolic.kernels.epilogue import Functions, outputs
from systolic.ops.collective.weight_schedule import WeightCut
from systolic.ops.engine.backend import ActivatedProduct
from systolic.spec import Epilogue, Operands, Pairing, PrecisionName, SliceMesh

# all-gather × matmul, matmul × reduce-scatter, and matmul × all-gathered weight, cut by k or by n
Kind = Literal["gather", "scatter", "weight by k", "weight by n"]
WEIGHT_CUTS: dict[Kind, WeightCut] = {"weight by k": "k", "weight by n": "n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RingProduct(ActivatedProduct):
    """All static parameters of a product except its operands' shapes; hashable."""

    kind: Kind
    axis_name: str
    devices: int
    ring: tuple[int, ...] | None  # axis indices round the ring; None: `AxisRing` when it is lowered
    collective_id: int
    precision: PrecisionName
    transpose_rhs: bool = False  # weights are [columns, k]
    pairing: Pairing | None = None  # of two matrices of weights: `gated` of a gather, `added` of a scatter
    kept_sum: str | None = None  # dtype of what a gather stores in addition for derivatives, as a `MatmulSpec` has it
    keeps_x: bool = False  # the gathered rows are a result too
    wire_dtype: str | None = None  # of the rows that a gather sends; None: their own
    slice_mesh: SliceMesh | None = None  # for the planner; None: the mesh was not set, or it fills no slice

    @property
    def plain(self) -> Self:
        return replace(self, activation="", function=None)

    @property
    def weight_cut(self) -> WeightCut | None:
        """The dimension by which a gathered weight is cut; None if the weight is not gathered."""
        return WEIGHT_CUTS.get(self.kind)

    @property
    def outs(self) -> int:
        """Results in addition to the gathered rows."""
        return 1 if self.kept_sum is None else 3 if self.pairing == "gated" else 2

    def finished(self, totals: tuple[Any, ...], bias: Any) -> tuple[Array, ...]:
        """Return the results that are made of sums."""
        # Records of sizes and counts are the planner's; here only what is applied counts.
        epilogue = Epilogue(activation=self.activation, kept_sum=self.kept_sum)
        functions = Functions(activation=self.function)
        operands = Operands(lhs=None, rhs=None, bias=bias)
        outs = outputs(totals, operands, epilogue, functions, self.dtype_out, self.pairing)
        dtypes = (self.dtype_out, *(self.kept_sum,) * (self.outs - 1))
        return tuple(out.astype(dtype) for out, dtype in zip(outs, dtypes, strict=True))
