"""Specs of products: sizes, dtypes, what is fused, and the arithmetic that follows. Pure data, no JAX.

Several ops share what is here. `MatmulSpec` is here too: matmul, gated, the grid schedule and the pipeline model
compute with it. A spec that one op alone uses is in the folder of that op.
"""

from systolic.spec.dtypes import EXACT_INT32_PRODUCTS, SpecError, accumulator_dtype, dtype_bytes, parts_of_k
from systolic.spec.formats import LARGEST, QuantizationError, format_bytes, format_named
from systolic.spec.fused import PLAIN, Epilogue, FusedOperand, Operands, Prologue, Side
from systolic.spec.matmul import LARGEST_SIZE, PASSES, MatmulSpec, NoKernelWarning, Pairing, PrecisionName
from systolic.spec.mesh import MeshAxis, SliceMesh
from systolic.spec.one_dtype import OneDtype
from systolic.spec.protocol import Spec

__all__ = [
    "EXACT_INT32_PRODUCTS",
    "LARGEST",
    "LARGEST_SIZE",
    "PASSES",
    "PLAIN",
    "Epilogue",
    "FusedOperand",
    "MatmulSpec",
    "MeshAxis",
    "NoKernelWarning",
    "OneDtype",
    "Operands",
    "Pairing",
    "PrecisionName",
    "Prologue",
    "QuantizationError",
    "Side",
    "SliceMesh",
    "Spec",
    "SpecError",
    "accumulator_dtype",
    "dtype_bytes",
    "format_bytes",
    "format_named",
    "parts_of_k",
]
