"""Matrices of experts in a dtype that grouped products take."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from systolic.ops.engine.dtypes import operand
from systolic.ops.quantized.array import Quantized, from_qwix, is_qarray, require_quantized
from systolic.spec import SpecError


def is_quantized(value: Any) -> bool:
    return isinstance(value, Quantized) or is_qarray(value)


def in_floats(value: Any, name: str, x: Any) -> Any:
    """Return quantized matrices in the dtype of x, and others as they are. Values of few bits are constants.

    Raises:
      SpecError: x holds no floats of 16 or 32 bits.
      QuantizationError: the arrays were cast or cut so that they are not codes and scales.
    """
    if not is_quantized(value):
        return value
    dtype = operand(x, "x").dtype
    if dtype not in (jnp.bfloat16, jnp.float32):
        raise SpecError(f"x is {dtype.name}; beside {name}, which is quantized, it has to be bfloat16 or float32")
    array = value if isinstance(value, Quantized) else from_qwix(value)
    require_quantized(array)
    return Quantized(lax.stop_gradient(array.values), array.scales).dequantize(dtype)
