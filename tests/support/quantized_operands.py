"""Quantized operands of tests, and what they stand for in float64."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import systolic


def quantized(random: np.random.Generator, shape: tuple[int, ...], name: str, **keywords: Any) -> systolic.Quantized:
    """Normal numbers, quantized."""
    # One program: each operation by itself is compiled anew for each shape, which takes longer than the product.
    quantize = jax.jit(functools.partial(systolic.quantize, dtype=name, **keywords))
    return quantize(random.standard_normal(shape).astype(np.float32))


def rows(random: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> jax.Array:
    """Normal numbers."""
    return jnp.asarray(random.standard_normal(shape), dtype)


def scales_of(q: systolic.Quantized) -> np.ndarray:
    """The scale of each value, in float64."""
    scales = np.asarray(q.scales).astype(np.float64)
    for axis, block in enumerate(q.blocks):
        scales = scales.repeat(block, axis)
    return scales


def exact(q: systolic.Quantized) -> np.ndarray:
    """Values times scales, in float64."""
    return np.asarray(q.values).astype(np.float64) * scales_of(q)
