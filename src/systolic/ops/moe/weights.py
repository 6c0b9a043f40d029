"""Matrices of experts that may be quantized."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from systolic.ops.engine.dtypes import operand
from systolic.ops.grouped.codes import constant_codes
from systolic.ops.quantized.arguments import is_quantized
from systolic.spec import SpecError


def checked(value: Any, name: str, x: Any) -> Any:
    """Return quantized matrices as a `Quantized`, and others as they are.

    Raises:
      SpecError: x holds no floats of 16 or 32 bits.
      QuantizationError: the arrays were cast or cut so that they are not codes and scales.
    """
    if not is_quantized(value):
        return value
    dtype = operand(x, "x").dtype
    if dtype not in (jnp.bfloat16, jnp.float32):
        raise SpecError(f"x is {dtype.name}; beside {name}, which is quantized, it has to be bfloat16 or float32")
    return constant_codes(value)
