"""Infinite and very large numbers stay right in the compiled program."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import chip
from systolic.compiler import WorkerPool, submit_compilation
from systolic.timing import target_of

CHIPS = ["v5e", "v5p", "v6e", "v7x"]
SIZE = 256


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=2) as pool:
        yield pool


def product(lhs: jax.Array, rhs: jax.Array, **keywords: Any) -> jax.Array:
    return systolic.matmul(lhs, rhs, tiles=(SIZE, SIZE, SIZE), **keywords)


def listing(pool: WorkerPool, name: str, dtype: Any, **keywords: Any) -> str:
    array = jax.ShapeDtypeStruct((SIZE, SIZE), dtype)
    compiled = submit_compilation(
        pool, functools.partial(product, **keywords), (array, array), target_of(chip(name)), cache=None
    )
    return "\n".join(compiled.result().listings.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHIPS)
def test_the_guards_of_precision_high_are_compiled(pool: WorkerPool, name: str) -> None:
    """The small products are compared with themselves: something that a compiler who knew no NaN would leave out."""
    high, default = (listing(pool, name, jnp.float32, precision=one) for one in ("high", "default"))
    compared = re.compile(r"vcmp\.\w+\.f32|vweird\.f32")
    assert not compared.search(default)
    assert len(compared.findall(high)) >= 32  # registers of the sum in one slice
    assert re.search(r"(vclamps[-.]f32|vm(in|ax)\.f32)\S* .*1\.3240357e\+36", high)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float32])
@pytest.mark.parametrize("out", [jnp.int8, jnp.int32])
def test_saturating_results_compile(pool: WorkerPool, name: str, dtype: Any, out: Any) -> None:
    for bias in (None, 1.0):
        assert "vmatmul" in listing(pool, name, dtype, preferred_element_type=out, bias=bias)
