"""Traced sizes and offsets of groups that nobody would write: `grouped_matmul` defines their rows, in gradients too."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import grouped_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic

M, K, N, GROUPS = 40, 16, 24, 2
LARGEST = 2**31 - 1
RANDOM = np.random.default_rng(0)
LHS, COTANGENT = (reference.small_integers(RANDOM, (M, size), "float32") for size in (K, N))
RHS, UP = (reference.small_integers(RANDOM, (GROUPS, K, N), "float32") for _ in range(2))
SIZES = ([7, 20, 5], [LARGEST, LARGEST, 5], [-3, LARGEST, 5], [10, -LARGEST, LARGEST])
OFFSETS = (-LARGEST - 1, -5, -1, 0, 1, 2, 3, 99, LARGEST)


def expected(sizes: list[int], offset: int) -> list[np.ndarray]:
    """The product, both gradients, and the gated product, from rows that saturate at `M`."""
    ends = np.minimum(np.cumsum(np.maximum(np.array(sizes, np.int64), 0)), M)
    out, gate, of_lhs, of_rhs = np.zeros((M, N)), np.zeros((M, N)), np.zeros((M, K)), np.zeros((GROUPS, K, N))
    for group, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        if 0 <= (own := group - offset) < GROUPS:
            rows = slice(start, end)
            out[rows], gate[rows] = LHS[rows] @ RHS[own], LHS[rows] @ UP[own]
            of_lhs[rows], of_rhs[own] = COTANGENT[rows] @ RHS[own].T, LHS[rows].T @ COTANGENT[rows]
    return [out, of_lhs, of_rhs, out * gate]


@functools.partial(jax.jit, static_argnums=0)
def computed(implementation: Any, sizes: jax.Array, offset: jax.Array) -> list[jax.Array]:
    multiply = functools.partial(systolic.grouped_matmul, group_offset=offset, implementation=implementation)
    out, back = jax.vjp(lambda lhs, rhs: multiply(lhs, rhs, sizes), jnp.asarray(LHS), jnp.asarray(RHS))
    return [out, *back(jnp.asarray(COTANGENT)), multiply(LHS, RHS, sizes, up=UP)]


@pytest.mark.parametrize("implementation", ["xla", pytest.param("interpret", marks=pytest.mark.exhaustive)])
def test_traced_sizes_and_offsets(implementation: Any) -> None:
    """Sums saturate at m, sizes below zero count as zero, and rows of groups without a matrix are zero."""
    pairs = [(SIZES[0], offset) for offset in OFFSETS] + [(sizes, 1) for sizes in SIZES]
    for sizes, offset in pairs:
        found = computed(implementation, np.array(sizes, np.int32), np.int32(offset))
        for one, other in zip(found, expected(sizes, offset), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{sizes=} {offset=}")


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_sizes_without_an_offset(implementation: Any) -> None:
    multiply = jax.jit(functools.partial(systolic.grouped_matmul, implementation=implementation))
    for sizes in ([LARGEST, LARGEST], [-LARGEST, LARGEST], [30, LARGEST]):
        out = multiply(LHS, RHS, np.array(sizes, np.int32))
        np.testing.assert_array_equal(out, expected(sizes, 0)[0])


def test_integers_of_other_widths_are_cut_to_what_they_say() -> None:
    multiply = jax.jit(lambda sizes, offset: systolic.grouped_matmul(LHS, RHS, sizes, group_offset=offset))
    for dtype in ("int8", "uint8", "uint32"):
        out = multiply(np.array([7, 20, 5], dtype), np.array(1, dtype))
        np.testing.assert_array_equal(out, expected([7, 20, 5], 1)[0])
    out = multiply(np.array([5, 2**32 - 1, 0], np.uint32), np.array(2**32 - 1, np.uint32))
    np.testing.assert_array_equal(out, np.zeros((M, N)))
    out = multiply(np.array([5, 2**32 - 1, 0], np.uint32), np.uint32(0))
    np.testing.assert_array_equal(out, expected([5, LARGEST, 0], 0)[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(("m", "k", "n", "groups", "every"), [(8, 8, 8, 0, 3), (0, 8, 8, 2, 3), (8, 0, 8, 2, 2)])
def test_sizes_of_zero(implementation: Any, m: int, k: int, n: int, groups: int, every: int) -> None:
    """No groups of three here, no rows, or no k, for which only what is fused is left."""
    sizes, offset = np.array([m, *[0] * (every - 1)], np.int32), 0 if every > groups else None
    bias = jnp.ones((groups, n))

    def product(lhs: jax.Array, rhs: jax.Array, bias: jax.Array) -> jax.Array:
        return systolic.grouped_matmul(lhs, rhs, sizes, group_offset=offset, bias=bias, implementation=implementation)

    out, back = jax.vjp(product, jnp.ones((m, k)), jnp.ones((groups, k, n)), bias)
    np.testing.assert_array_equal(out, np.full((m, n), 1.0 if groups else 0.0))
    of_lhs, of_rhs, of_bias = back(jnp.ones((m, n)))
    assert (of_lhs.shape, of_rhs.shape, of_bias.shape) == ((m, k), (groups, k, n), (groups, n))
    assert not of_lhs.any()
    assert not of_rhs.any()
    np.testing.assert_array_equal(of_bias, np.array([m, *[0] * (groups - 1)])[:groups, None] * np.ones((groups, n)))


def test_a_batch_of_no_products() -> None:
    multiply = jax.vmap(lambda lhs, rhs: systolic.grouped_matmul(lhs, rhs, np.array([3, 5])))
    out = multiply(jnp.ones((0, 8, K)), jnp.ones((0, 2, K, N)))
    assert (out.shape, out.dtype) == ((0, 8, N), jnp.float32)
