"""Quantised arrays, and products with them."""

from systolic.ops.quantised.array import Quantized, from_qwix, to_qwix
from systolic.ops.quantised.plan import QuantizedOp
from systolic.ops.quantised.quantize import dequantize, fake_quantize, quantize

__all__ = ["Quantized", "QuantizedOp", "dequantize", "fake_quantize", "from_qwix", "quantize", "to_qwix"]
