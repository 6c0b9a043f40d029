"""Every op has derivatives in forward and in reverse mode, in any order: each beside plain JAX in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic import BlockMask, BlockSparse, Quantized, quantize

M, K, N = 16, 8, 24
SIZES = np.array([5, 0, 9], np.int32)  # two rows belong to no group
GROUP = np.array([0] * 5 + [2] * 9 + [3] * 2)
GATE, UP = (quantize(np.random.default_rng(seed).normal(size=(K, N)).astype(np.float32), block=4) for seed in (1, 2))
TRIANGLE = BlockSparse.from_dense(jnp.triu(jnp.ones((M, K))), (8, 4))
MASK = BlockMask.causal((M, M), (8, 8))

Fn = Callable[..., Any]


def grouped(x: Any, w: Any, bias: Any) -> Any:
    return systolic.grouped_matmul(x, w, SIZES, bias=bias, activation="silu", precision="highest")


def grouped_in_jax(x: Any, w: Any, bias: Any) -> Any:
    group = np.minimum(GROUP, 2)
    rows = jax.nn.silu(jnp.einsum("mk,mkn->mn", x, w[group]) + bias[group])
    return jnp.where((GROUP < 3)[:, None], rows, 0.0)


def gradient_of_grouped(x: Any, w: Any) -> Any:
    plain = lambda w: systolic.grouped_matmul(x, w, SIZES, precision="highest")  # noqa: E731
    return jax.grad(lambda w: jnp.sin(plain(w)).sum())(w)


def gradient_of_grouped_in_jax(x: Any, w: Any) -> Any:
    rows = lambda w: jnp.einsum("mk,mkn->mn", x, w[np.minimum(GROUP, 2)])  # noqa: E731
    return jax.grad(lambda w: jnp.where((GROUP < 3)[:, None], jnp.sin(rows(w)), 0.0).sum())(w)


def sparse(blocks: Any, dense: Any, bias: Any) -> Any:
    matrix = TRIANGLE.with_blocks(blocks)
    return systolic.sparse_matmul(matrix, dense, transpose_lhs=True, bias=bias, activation="silu", precision="highest")


def sparse_in_jax(blocks: Any, dense: Any, bias: Any) -> Any:
    rows, columns = np.asarray(TRIANGLE.rows), np.asarray(TRIANGLE.columns)
    cut = jnp.zeros((M // 8, K // 4, 8, 4), blocks.dtype).at[rows, columns].set(blocks, mode="drop")
    return jax.nn.silu(cut.swapaxes(1, 2).reshape(M, K).T @ dense + bias)


def sampled(lhs: Any, rhs: Any) -> Any:
    return systolic.sparse_matmul(lhs, rhs, mask=MASK, dense_out=True, precision="highest")


def scaled(x: Any, scales: Any) -> Any:
    return systolic.matmul(x, Quantized(GATE.values, scales / 127), activation="silu")


def scaled_in_jax(x: Any, scales: Any) -> Any:
    return jax.nn.silu(x @ _weight(GATE, scales))


def gated(x: Any, scales: Any, up_scales: Any) -> Any:
    return systolic.gated_matmul(x, Quantized(GATE.values, scales / 127), Quantized(UP.values, up_scales / 127))


def gated_in_jax(x: Any, scales: Any, up_scales: Any) -> Any:
    return jax.nn.silu(x @ _weight(GATE, scales)) * (x @ _weight(UP, up_scales))


def _weight(codes: Quantized, scales: Any) -> Any:
    return codes.values.astype(scales.dtype) * jnp.repeat(scales / 127, K // scales.shape[0], axis=0)


CASES: dict[str, tuple[Fn, Fn, tuple[tuple[int, ...], ...]]] = {
    "grouped": (grouped, grouped_in_jax, ((M, K), (3, K, N), (3, N))),
    "grouped gradient": (gradient_of_grouped, gradient_of_grouped_in_jax, ((M, K), (3, K, N))),
    "sparse": (sparse, sparse_in_jax, (TRIANGLE.blocks.shape, (M, N), (N,))),
    "sampled": (sampled, lambda lhs, rhs: jnp.tril(lhs @ rhs), ((M, K), (K, M))),
    "quantized": (scaled, scaled_in_jax, ((M, K), GATE.scales.shape)),
    "quantized gated": (gated, gated_in_jax, ((M, K), GATE.scales.shape, UP.scales.shape)),
}


@functools.partial(jax.jit, static_argnums=0)  # their operations one by one take three times as long to compile
def derivatives(fn: Fn, operands: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """First and second derivatives: forward, reverse, forward over reverse and reverse over forward."""
    everything = tuple(range(len(operands)))
    total = lambda *operands: jnp.sin(fn(*operands)).sum()  # noqa: E731
    gradient = jax.grad(total, everything)
    along = lambda *operands: jax.jvp(total, operands, tangents)[1]  # noqa: E731
    return (
        jax.jvp(fn, operands, tangents)[1],
        gradient(*operands),
        jax.jvp(gradient, operands, tangents)[1],
        jax.grad(along, everything)(*operands),
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_both_modes_in_any_order(name: str) -> None:
    fn, in_jax, shapes = CASES[name]
    random = np.random.default_rng(0)
    operands, tangents = (tuple(random.normal(size=shape) for shape in shapes) for _ in range(2))
    with jax.enable_x64(True):
        exact = derivatives(in_jax, operands, tangents)
    single = lambda arrays: tuple(jnp.asarray(array, jnp.float32) for array in arrays)  # noqa: E731
    for value, right in zip(
        jax.tree.leaves(derivatives(fn, single(operands), single(tangents))), jax.tree.leaves(exact), strict=True
    ):
        # Some sixty roundings of float32 between operands and a second derivative, none of them amplified much.
        np.testing.assert_allclose(value, right, rtol=0, atol=64 * 2**-24 * max(1.0, float(np.abs(right).max())) * K)
