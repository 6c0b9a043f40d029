"""Quantised arrays, and products with them."""

from systolic.ops.quantised.array import Quantized, from_qwix, to_qwix
from systolic.ops.quantised.quantize import dequantize, quantize

__all__ = ["Quantized", "dequantize", "from_qwix", "quantize", "to_qwix"]
