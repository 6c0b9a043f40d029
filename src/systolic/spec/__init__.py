"""What is multiplied: shapes, dtypes, what is fused, and the arithmetic that follows. Pure data, nothing of how."""

from systolic.spec.dtypes import SpecError, accumulator_dtype, dtype_bytes
from systolic.spec.fused import PLAIN, Epilogue, FusedOperand, Operands, Prologue, Side
from systolic.spec.gated import GatedSpec
from systolic.spec.grouped import GroupedGradientSpec, GroupedSpec
from systolic.spec.matmul import LARGEST_SIZE, PASSES, MatmulSpec, NoKernelWarning, Pairing, PrecisionName
from systolic.spec.protocol import Spec

__all__ = [
    "LARGEST_SIZE",
    "PASSES",
    "PLAIN",
    "Epilogue",
    "FusedOperand",
    "GatedSpec",
    "GroupedGradientSpec",
    "GroupedSpec",
    "MatmulSpec",
    "NoKernelWarning",
    "Operands",
    "Pairing",
    "PrecisionName",
    "Prologue",
    "Side",
    "Spec",
    "SpecError",
    "accumulator_dtype",
    "dtype_bytes",
]
