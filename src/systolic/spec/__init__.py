"""What is multiplied: shapes, dtypes, what is fused, and the arithmetic that follows. Pure data, nothing of how."""

from systolic.spec.dtypes import EXACT_INT32_PRODUCTS, SpecError, accumulator_dtype, dtype_bytes, parts_of_k
from systolic.spec.formats import LARGEST, QuantizationError, format_bytes, format_named
from systolic.spec.fused import PLAIN, Epilogue, FusedOperand, Operands, Prologue, Side
from systolic.spec.gated import GatedSpec
from systolic.spec.grouped import GroupedGradientSpec, GroupedSpec
from systolic.spec.matmul import LARGEST_SIZE, PASSES, MatmulSpec, NoKernelWarning, Pairing, PrecisionName
from systolic.spec.one_dtype import OneDtype
from systolic.spec.protocol import Spec
from systolic.spec.quantised import ROW_FORMATS, QuantizedSpec
from systolic.spec.sparse import BlockSparseError, SparseKind, SparseSpec

__all__ = [
    "EXACT_INT32_PRODUCTS",
    "LARGEST",
    "LARGEST_SIZE",
    "PASSES",
    "PLAIN",
    "ROW_FORMATS",
    "BlockSparseError",
    "Epilogue",
    "FusedOperand",
    "GatedSpec",
    "GroupedGradientSpec",
    "GroupedSpec",
    "MatmulSpec",
    "NoKernelWarning",
    "OneDtype",
    "Operands",
    "Pairing",
    "PrecisionName",
    "Prologue",
    "QuantizationError",
    "QuantizedSpec",
    "Side",
    "SparseKind",
    "SparseSpec",
    "Spec",
    "SpecError",
    "accumulator_dtype",
    "dtype_bytes",
    "format_bytes",
    "format_named",
    "parts_of_k",
]
