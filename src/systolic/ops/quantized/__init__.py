"""Quantized arrays, and their products."""

from systolic.ops.quantized.array import Quantized, from_qwix, to_qwix
from systolic.ops.quantized.op import QuantizedOp
from systolic.ops.quantized.quantize import dequantize, fake_quantize, quantize

__all__ = ["Quantized", "QuantizedOp", "dequantize", "fake_quantize", "from_qwix", "quantize", "to_qwix"]
