"""Floats of few bits on chips that do not take them: made from their bits, and rounded to, in float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

_MANTISSA = 23  # bits of float32
_BIAS = 127
_EXPONENTS = 0x7F800000


def numbers_of_bits(bits: Array, name: str) -> Array:
    """Return the float32 numbers whose bits, in the format `name`, the integers hold."""
    # A subnormal is computed as a difference from a power of two: a TPU takes subnormals of float32 for zero.
    info: Any = jnp.finfo(name)
    codes = bits.astype(jnp.int8).astype(jnp.int32)  # with their signs
    magnitudes = codes & ((1 << (info.bits - 1)) - 1)
    bias = 1 - int(info.minexp)
    as_normal = (magnitudes << (_MANTISSA - info.nmant)) + ((_BIAS - bias) << _MANTISSA)
    numbers: Any = pltpu.bitcast(as_normal, jnp.float32)
    numbers = jnp.where(magnitudes < 1 << info.nmant, 2.0 * numbers - 2.0**info.minexp, numbers)
    if name == "float8_e5m2":  # the only one with an infinity, which follows its largest number
        beyond = 2.0**info.maxexp
        numbers = jnp.where(numbers < beyond, numbers, jnp.where(numbers == beyond, jnp.inf, jnp.nan))
    elif name == "float8_e4m3fn":
        numbers = jnp.where(numbers > float(info.max), jnp.nan, numbers)
    elif name == "float8_e4m3b11fnuz":  # what would be minus zero
        numbers = jnp.where(codes == -(1 << (info.bits - 1)), jnp.nan, numbers)
    return jnp.where(codes < 0, -numbers, numbers)


def rounded_to(numbers: Array, name: str) -> Array:
    """Round float32 numbers, none beyond the largest of a format, to the nearest of the format, ties to even."""
    info: Any = jnp.finfo(name)
    bits: Any = pltpu.bitcast(numbers, jnp.int32)
    exponents = jnp.maximum(bits & _EXPONENTS, (int(info.minexp) + _BIAS) << _MANTISSA)
    steps = exponents - (int(info.nmant) << _MANTISSA)
    inverses: Any = pltpu.bitcast((2 * _BIAS << _MANTISSA) - steps, jnp.float32)
    return jnp.round(numbers * inverses) * pltpu.bitcast(steps, jnp.float32)
