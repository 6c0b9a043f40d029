"""Values and gradients of `sparse_matmul` with a transpose, bias or activation, and of sizes that are zero."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic import BlockMask, BlockSparse

FUSED = {"bias": (True, None), "activation": (False, "silu"), "both": (True, "tanh")}
MASK = np.array([[1, 0, 1], [0, 1, 0]], bool)  # neither its grid nor its blocks are square


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


class Product:
    """`activation(sparse @ x + bias)`, or of dds `activation(x @ sparse + bias)`."""

    def __init__(self, kind: str, turned: bool, fused: str, implementation: Any) -> None:
        block, sweep = ((128, 256), 128) if implementation == "interpret" else ((3, 2), 5)
        self.is_left, self.turned = kind == "dsd", turned
        self.implementation: Any = implementation
        self.has_bias, self.activation = FUSED[fused]
        self.places = np.kron(MASK, np.ones(block, bool))
        self.dense = numbers(self.places.shape, 0) * self.places / 8
        padded = BlockSparse.from_dense(self.dense, block, MASK, most_blocks=4)
        self.matrix = padded.with_blocks(jnp.asarray(padded.blocks).at[3:].set(jnp.nan))
        rows, columns = self.dense.shape[:: -1 if turned else 1]
        self.x = numbers((columns, sweep) if self.is_left else (sweep, rows), 1)
        self.bias = numbers((sweep if self.is_left else columns,), 2)
        self.weights = numbers((rows, sweep) if self.is_left else (sweep, columns), 3)

    def ours(self, blocks: Any, x: Any, bias: Any) -> Any:
        sparse = self.matrix.with_blocks(blocks)
        fused = {"bias": bias if self.has_bias else None, "activation": self.activation}
        sides = (sparse, x) if self.is_left else (x, sparse)
        turned = {"transpose_lhs" if self.is_left else "transpose_rhs": self.turned}
        return systolic.sparse_matmul(
            *sides, **turned, **fused, precision="highest", implementation=self.implementation
        )

    def plain(self, dense: Any, x: Any, bias: Any) -> Any:
        whole = jnp.where(self.places, dense, 0)
        whole = whole.mT if self.turned else whole
        total = whole @ x if self.is_left else x @ whole
        total = total + bias if self.has_bias else total
        return getattr(jax.nn, self.activation)(total) if self.activation else total

    def check(self, order: int = 1) -> None:
        def derivatives(fn: Any, first: Any, x: Any, bias: Any) -> Any:
            def loss(*operands: Any) -> Any:
                out = fn(*operands)
                return (out * self.weights.astype(out.dtype)).sum(), out

            def squares(*operands: Any) -> Any:
                return sum((one**2).sum() for one in jax.grad(loss, (0, 1, 2), has_aux=True)(*operands)[0])

            (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(first, x, bias)
            return out, gradients if order == 1 else jax.grad(squares, (0, 1, 2))(first, x, bias)

        value, found = jax.jit(derivatives, static_argnums=0)(self.ours, self.matrix.blocks, self.x, self.bias)
        with jax.enable_x64(True):
            wide = (one.astype(np.float64) for one in (self.dense, self.x, self.bias))
            out, expected = derivatives(self.plain, *wide)
        np.testing.assert_allclose(value, out, rtol=1e-5, atol=1e-5)
        assert not np.asarray(found[0])[3:].any(), "padding has no gradient"
        blocks = self.matrix.with_blocks(found[0]).to_dense()
        for one, other in zip((blocks, *found[1:]), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "turned", "fused"), [*itertools.product(["dsd", "dds"], [False, True], FUSED)])
def test_fused_gradients_by_xla(kind: str, turned: bool, fused: str) -> None:
    Product(kind, turned, fused, "xla").check()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["dsd", "dds"])
def test_fused_gradients_of_a_transpose_by_the_kernels(kind: str) -> None:
    Product(kind, True, "both", "interpret").check()


@pytest.mark.exhaustive
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["dsd", "dds"])
def test_second_derivatives_of_a_fused_transpose(kind: str) -> None:
    Product(kind, True, "both", "xla").check(order=2)


def test_a_triangle_that_is_transposed_and_differentiated() -> None:
    dense = jnp.triu(jnp.ones((16, 16)))
    matrix = BlockSparse.from_dense(dense, (8, 8))

    def loss(x: Any) -> Any:
        return systolic.sparse_matmul(matrix, x, transpose_lhs=True, activation="relu").sum()

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones((16, 1)))[:, 0], np.arange(16, 0, -1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "bias"), [("bfloat16", -256.0), ("int8", -16129.0 * 2)])
def test_sums_are_not_rounded_where_a_product_is_differentiated(dtype: str, bias: float) -> None:
    """A bias that cancels most of the sum leaves what bfloat16 would have rounded away."""
    dense = np.array([[16, 0.5], [127, 127]], np.float64)[[0 if dtype == "bfloat16" else 1]]
    x = np.array([[16, 1], [1, 1]] if dtype == "bfloat16" else [[127, 100], [126, 3]], np.float64)
    matrix = BlockSparse.from_dense(jnp.asarray(dense, dtype), (1, 1))

    def loss(bias: Any) -> Any:
        out = systolic.sparse_matmul(
            matrix, jnp.asarray(x, dtype), bias=bias, activation="relu", preferred_element_type="float32"
        )
        return out.sum(), out

    (_, out), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.full(2, bias + 200))
    expected = np.maximum(dense @ x + bias + 200, 0)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(gradient, (expected > 0)[0])


def check_nothing(m: int, k: int, n: int, implementation: Any, blocks: int) -> None:
    """All products with these sizes, of matrices whose blocks are padding: values, and gradients in everything."""
    size = 128
    lhs, rhs, bias = np.ones((m, k), "float32"), np.ones((k, n), "float32"), np.ones(n, "float32")

    def padding(rows: int, columns: int) -> BlockSparse:
        places = np.full(blocks, rows // size, np.int32)
        return BlockSparse(jnp.full((blocks, size, size), jnp.nan), places, 0 * places, (rows, columns))

    left, right, result = padding(m, k), padding(k, n), padding(m, n)

    def products(first: Any, second: Any, lhs: Any, rhs: Any, bias: Any) -> Any:
        options = {"implementation": implementation}
        masked = systolic.sparse_matmul(lhs, rhs, mask=result, **options)
        fused = {"bias": bias, "activation": "softplus", **options}
        return (
            systolic.sparse_matmul(left.with_blocks(first), rhs, **options),
            systolic.sparse_matmul(lhs, right.with_blocks(second), **options),
            systolic.sparse_matmul(lhs, rhs, mask=result, dense_out=True, **options),
            masked.to_dense(),
            systolic.sparse_matmul(left.with_blocks(first), rhs, **fused),
            systolic.sparse_matmul(lhs, right.with_blocks(second), **fused),
        )

    operands = (left.blocks, right.blocks, lhs, rhs, bias)
    out, back = jax.vjp(jax.jit(products), *operands)
    plain, fused = np.zeros((m, n)), np.full((m, n), np.log1p(np.e))
    for one, expected in zip(out, [plain] * 4 + [fused] * 2, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-6)
        assert one.shape == (m, n)
    *gradients, to_bias = jax.jit(back)(tuple(jnp.ones_like(one) for one in out))
    for gradient, operand in zip(gradients, operands[:4], strict=True):
        assert gradient.shape == operand.shape
        assert not np.asarray(gradient).any()
    np.testing.assert_allclose(to_bias, np.full(n, 2 * m / (1 + np.exp(-1))), rtol=1e-5)


SIZES = [sizes for sizes in itertools.product([0, 128], repeat=3) if 0 in sizes]


@pytest.mark.sampled
@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize(("m", "k", "n"), [*SIZES, (128, 256, 384)])
def test_nothing_by_xla(m: int, k: int, n: int, blocks: int) -> None:
    check_nothing(m, k, n, "xla", blocks)


def test_nothing_by_the_kernels() -> None:
    for sizes in ((0, 128, 128), (128, 0, 128), (128, 128, 0), (0, 0, 0)):
        check_nothing(*sizes, "interpret", 2)
    check_nothing(128, 256, 128, "interpret", 0)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_an_empty_batch(implementation: Any) -> None:
    matrix = BlockSparse.from_dense(np.ones((128, 128), "float32"), (128, 128))

    def product(x: Any) -> Any:
        return systolic.sparse_matmul(matrix, x, bias=np.ones(8, "float32"), implementation=implementation)

    out, back = jax.vjp(product, jnp.ones((0, 128, 8)))
    assert out.shape == (0, 128, 8)
    assert back(out)[0].shape == (0, 128, 8)
    assert jax.vmap(product)(jnp.ones((0, 128, 8))).shape == (0, 128, 8)


@pytest.mark.parametrize(("implementation", "limit"), [("xla", 10**30), ("interpret", 2**40)])
def test_diagonals_far_outside(implementation: Any, limit: int) -> None:
    block = (128, 128) if implementation == "interpret" else (2, 2)
    shape = (block[0], 2 * block[1])
    places = np.zeros(2, np.int32), np.arange(2, dtype=np.int32)
    lhs, rhs = np.ones((shape[0], 1), "float32"), np.ones((1, shape[1]), "float32")
    for band, is_all in (((-limit, limit), True), ((limit, -limit), False)):
        mask = BlockMask(*places, shape, block, *band)
        out = systolic.sparse_matmul(lhs, rhs, mask=mask, dense_out=True, implementation=implementation)
        np.testing.assert_array_equal(out, np.full(shape, float(is_all)))
    assert BlockMask.banded(shape, block, limit, None).rows.shape == (0,)
