"""Quantized arrays that are not what they were made as: cast, cut, empty. They are refused, or give zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.spec import QuantizationError, SpecError

X = np.ones((4, 64), np.float32)
WEIGHT = np.ones((64, 8), np.float32)


def gradient(q: Any) -> Any:
    return jax.grad(lambda x: systolic.matmul(x, q).sum())(X)


USES: dict[str, Callable[[Any], Any]] = {
    "rhs": lambda q: systolic.matmul(X, q),
    "rhs of quantized rows": lambda q: systolic.matmul(X, q, quantize_lhs="int8"),
    "rhs of a kernel": lambda q: systolic.matmul(X, q, implementation="interpret"),
    "lhs": lambda q: systolic.matmul(q, X[:, :8].T),
    "both": lambda q: systolic.matmul(systolic.quantize(X, axis=-1), q),
    "jit": lambda q: jax.jit(systolic.matmul)(X, q),
    "gate": lambda q: systolic.gated_matmul(X, q, q),
    "up": lambda q: systolic.gated_matmul(X, systolic.quantize(WEIGHT), q),
    "gradient": gradient,
    "dequantize": systolic.dequantize,
    "transpose": lambda q: q.mT,
}
BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "cast": (lambda array: array.astype(jnp.bfloat16), "values are bfloat16; use one of int8"),
    "other integers": (lambda array: array.astype(jnp.uint8), "values are uint8; use one of int8"),
    "cut": (lambda array: array[1:] if array.shape[0] > 1 else jnp.ones((2, 8)), r"scales of shape \[2, 8\]"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("use", USES)
def test_arrays_that_are_no_codes_are_refused_wherever_they_are_read(use: str, broken: str) -> None:
    """A weight that was cast to bfloat16 as a tree gave products without its scales: 2,259 in place of 61.9."""
    change, message = BROKEN[broken]
    q = jax.tree.map(change, systolic.quantize(WEIGHT))
    if (use, broken) == ("transpose", "cut"):
        message = r"scales of shape \[8, 2\]"
    with pytest.raises(QuantizationError, match=message):
        USES[use](q)


def test_scales_alone_may_be_cast() -> None:
    """The fix that the error names."""
    q = systolic.quantize(WEIGHT)
    cast = systolic.Quantized(q.values, q.scales.astype(jnp.bfloat16))
    np.testing.assert_allclose(np.asarray(systolic.matmul(X, cast)), 64.0, rtol=2**-8)


def test_shapes_in_place_of_arrays() -> None:
    q = jax.eval_shape(systolic.quantize, WEIGHT)
    with pytest.raises(SpecError, match=r"rhs\.values is a ShapeDtypeStruct"):
        systolic.matmul(X, q)
    assert jax.eval_shape(systolic.matmul, X, q).shape == (4, 8)


def test_no_scalar_is_multiplied() -> None:
    with pytest.raises(SpecError, match="lhs is a scalar"):
        systolic.matmul(systolic.Quantized(np.int8(3), np.float32(1)), WEIGHT)


@pytest.mark.parametrize(
    "use",
    [
        lambda q: systolic.dot_general(X, q, (((1,), (0,)), ((), ()))),
        lambda q: systolic.einsum("mk,kn->mn", X, q),
        lambda q: systolic.matmul(X, WEIGHT, bias=q),
    ],
    ids=["dot_general", "einsum", "bias"],
)
def test_what_takes_no_quantized_array_says_so(use: Callable[[Any], Any]) -> None:
    with pytest.raises(SpecError, match=r"is a Quantized, .* use q\.dequantize"):
        use(systolic.quantize(WEIGHT))


def test_a_quantized_array_is_not_quantized_again() -> None:
    q = jax.tree.map(lambda array: array.astype(jnp.bfloat16), systolic.quantize(WEIGHT))
    with pytest.raises(QuantizationError, match="x is a Quantized"):
        systolic.quantize(q)


KINDS: dict[str, Callable[..., Any]] = {
    "plain": systolic.matmul,
    "fused": lambda x, w: systolic.matmul(x, w, bias=jnp.ones(w.shape[1]), activation="relu", quantize_lhs="int8"),
    "gated": lambda x, w: systolic.gated_matmul(x, w, w),
}


@pytest.mark.parametrize(
    ("kind", "quantized_rows"), [("plain", False), ("plain", True), ("fused", False), ("gated", False), ("gated", True)]
)
@pytest.mark.parametrize(("m", "k", "n"), [(0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 0, 1), (0, 0, 0)])
@pytest.mark.sampled
@pytest.mark.paired
def test_any_size_may_be_zero(kind: str, quantized_rows: bool, m: int, k: int, n: int) -> None:
    """With k = 0, JAX raised `ZeroDivisionError: integer modulo by zero`. An empty sum is 0."""
    x = jnp.ones((m, k))
    operands = systolic.quantize(x, axis=-1) if quantized_rows else x, systolic.quantize(jnp.ones((k, n)))
    out, back = jax.vjp(jax.jit(KINDS[kind]), *operands)
    np.testing.assert_array_equal(np.asarray(out), np.full((m, n), 1.0 if kind == "fused" else 0.0))
    grads = jax.tree.leaves(back(jnp.ones_like(out)))
    assert [grad.shape for grad in grads] == [array.shape for array in jax.tree.leaves(operands)]
    assert not any(np.asarray(grad).astype(bool).any() for grad in grads if grad.dtype != jax.dtypes.float0)


def test_empty_batches() -> None:
    """No matrices of a batch, and no calls under `vmap`, which never ended for a weight of its own each."""
    w = systolic.quantize(jnp.ones((5, 3)))
    assert jax.vmap(lambda x: systolic.matmul(x, w))(jnp.ones((0, 4, 5))).shape == (0, 4, 3)
    batch = systolic.quantize(jnp.ones((0, 5, 3)))
    assert systolic.matmul(jnp.ones((4, 5)), batch).shape == (0, 4, 3)
    assert jax.vmap(systolic.matmul, (None, 0))(jnp.ones((4, 5)), batch).shape == (0, 4, 3)


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (0, 3, 4)])
@pytest.mark.parametrize("keywords", [{}, {"axis": None}, {"axis": -1}, {"block": 2}, {"search": True}])
def test_empty_arrays_are_quantized(shape: tuple[int, ...], keywords: dict[str, Any]) -> None:
    if "block" in keywords and shape[-2] % 2:
        shape = (*shape[:-2], 2, shape[-1])
    q = systolic.quantize(jnp.ones(shape), **keywords)
    assert (q.shape, q.dequantize().shape) == (shape, shape)
    assert systolic.fake_quantize(jnp.ones(shape), **keywords).shape == shape


@pytest.mark.parametrize("block", [0, -5])
def test_blocks_of_nothing_are_refused(block: int) -> None:
    with pytest.raises(QuantizationError, match=f"block={block}"):
        systolic.quantize(jnp.ones((0, 4)), block=block)


def test_no_block_of_nothing_has_several_scales() -> None:
    with pytest.raises(QuantizationError, match=r"scales of shape \[3, 4\]"):
        systolic.Quantized(jnp.ones((0, 4), jnp.int8), jnp.ones((3, 4)))
