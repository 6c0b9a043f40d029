"""Floats of few bits that are made of their bits, and rounded to, as NumPy's do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from systolic.ops.quantized.kernel.bits import numbers_of_bits, rounded_to

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")


def run(fn: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    def kernel(given: Any, made: Any) -> None:
        made[...] = fn(given[...])

    shape = jax.ShapeDtypeStruct(array.shape, jnp.float32)
    return np.asarray(pl.pallas_call(kernel, out_shape=shape, interpret=True)(array))


@pytest.mark.parametrize("name", FLOAT8)
def test_every_code_is_its_number(name: str) -> None:
    """Also subnormals, both zeros, infinity and NaN."""
    codes = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    wanted = codes.view(jnp.dtype(name)).astype(np.float32)
    np.testing.assert_array_equal(run(lambda bits: numbers_of_bits(bits, name), codes), wanted)


@pytest.mark.parametrize("name", FLOAT8)
def test_numbers_are_rounded_as_by_a_cast(name: str) -> None:
    """Normal and subnormal ones, and each in the middle of two, which goes to the even one."""
    random, its = np.random.default_rng(0), jnp.finfo(name)
    positive = np.arange(128, dtype=np.int8).view(jnp.dtype(name)).astype(np.float32)
    positive = np.sort(positive[np.isfinite(positive)])
    middles = (positive[:-1] + positive[1:]) / 2
    wide = random.standard_normal(2**12) * np.exp2(random.integers(its.minexp - 8, its.maxexp, 2**12))
    given = np.concatenate([positive, middles, -middles, np.clip(wide, -float(its.max), float(its.max))])
    given = np.pad(given, (0, -given.size % 128)).astype(np.float32).reshape(-1, 128)
    wanted = given.astype(jnp.dtype(name)).astype(np.float32)
    np.testing.assert_array_equal(run(lambda numbers: rounded_to(numbers, name), given), wanted)
