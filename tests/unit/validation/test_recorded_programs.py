"""The rebuilt programs of recorded operations compute what their names say, against float64 and other derivatives."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systolic.chips import chip
from systolic.validation.recorded import chunked_attention as chunks
from systolic.validation.recorded.arguments import array_of
from systolic.validation.recorded.attention import Settings, attention, attention_gradient
from systolic.validation.recorded.call import Call
from systolic.validation.recorded.chunked_attention import chunked_attention
from systolic.validation.recorded.chunked_losses import chunked_loss, chunked_loss_gradient
from systolic.validation.recorded.gated import gated_linear_unit
from systolic.validation.recorded.gathers import combined_rows
from systolic.validation.recorded.losses import loss, loss_gradient
from systolic.validation.recorded.norms import layer_norm, layer_norm_gradient, triangle_multiplication
from systolic.validation.recorded.ragged import multiplies_every_group, ragged_dot

HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
# Sums of a few hundred float32 numbers around 1: their error is some 2⁻²⁴ times the square root of their number.
CLOSE: Any = {"rtol": 2e-5, "atol": 2e-5}


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    with jax.default_matmul_precision("highest"):
        yield


def test_a_gated_linear_unit() -> None:
    x, weights = drawn(3, 5, 16), drawn(16, 2, 8)
    result = gated_linear_unit(x, weights, activation="silu", precision=HIGHEST)
    gate, projection = (x.astype(float) @ weights[:, part] for part in (0, 1))
    np.testing.assert_allclose(result, gate / (1 + np.exp(-gate)) * projection, **CLOSE)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_and_their_gradients_in_one_piece_and_in_blocks(reduction: str) -> None:
    x, w = drawn(37, 16), drawn(16, 50)
    labels: Any = np.arange(37) % 50
    blocks: Any = {"token_block": 16, "column_block": 32}  # 37 and 50 leave a remainder
    logits = x.astype(float) @ w
    expected_lse = np.log(np.exp(logits).sum(axis=1))
    of_tokens = expected_lse - logits[np.arange(37), labels]
    expected = of_tokens.mean() if reduction == "mean" else of_tokens.sum()
    whole: Any = loss(x, labels, w, reduction=reduction, with_residuals=True)
    np.testing.assert_allclose(whole[0], expected, **CLOSE)
    np.testing.assert_allclose(whole[1][0], expected_lse, **CLOSE)
    by_x, by_w = jax.grad(lambda x, w: loss(x, labels, w, reduction=reduction, with_residuals=False), (0, 1))(x, w)
    arguments: Any = (expected_lse.astype(np.float32), np.float32(1), x, labels, w)
    _assert_close(loss_gradient(*arguments, reduction=reduction), (by_x, np.zeros(37, int), by_w))
    # The timed program counts the logits of the 14 padded columns, which are 0.
    padded_lse = np.log(np.exp(logits).sum(axis=1) + 14)
    shift = (padded_lse - expected_lse).mean() if reduction == "mean" else (padded_lse - expected_lse).sum()
    in_blocks: Any = chunked_loss(x, labels, w, reduction=reduction, with_residuals=True, **blocks)
    _assert_close(in_blocks, (expected + shift, (padded_lse,)))
    gradient = chunked_loss_gradient(*arguments, reduction=reduction, **blocks)
    _assert_close(gradient, (by_x, np.zeros(37, int), by_w))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("causal", "with_bias"), [(True, False), (False, True)])
def test_attention_its_gradient_and_attention_in_chunks(
    causal: bool, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_QUERIES", 32)  # 150 leaves a remainder of queries and of keys
    monkeypatch.setattr(chunks, "_KEYS", 64)
    settings = Settings(precisions=(HIGHEST, HIGHEST), scale=0.3, causal=causal)
    q, k, v = drawn(2, 150, 4, 8), drawn(2, 150, 2, 8, seed=1), drawn(2, 150, 2, 8, seed=2)  # two heads of q for each
    bias = drawn(1, 4, 150, 150) if with_bias else None
    mask = (np.arange(150) % 7 != 3)[None, None, None] if with_bias else None
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(float), np.repeat(k, 2, axis=2)) * 0.3 + (
        0 if bias is None else bias
    )
    allowed = np.ones((150, 150), bool) if not causal else np.tri(150, dtype=bool)
    logits = np.where(allowed if mask is None else allowed & mask, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, np.repeat(v, 2, axis=2))
    result, (largest, sums) = cast("Any", attention(q, k, v, bias, mask, settings=settings, with_residuals=True))
    np.testing.assert_allclose(result, expected, **CLOSE)
    np.testing.assert_allclose(chunked_attention(q, k, v, bias, mask, settings=settings), expected, **CLOSE)
    cotangent = drawn(2, 150, 4, 8, seed=3)

    def weighed(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return jnp.sum(attention(q, k, v, bias, mask, settings=settings, with_residuals=False) * cotangent)  # type: ignore[operator]

    expected_gradients = jax.grad(weighed, (0, 1, 2, 3) if with_bias else (0, 1, 2))(q, k, v, bias)
    gradients = cast(
        "tuple[Any, ...]", attention_gradient(largest, sums, cotangent, q, k, v, bias, mask, settings=settings)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=False):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


def test_attention_in_chunks_has_those_of_the_timed_call() -> None:
    settings = Settings(precisions=(HIGHEST, HIGHEST), scale=0.3, causal=False)
    operand = jax.ShapeDtypeStruct((3, 2048, 2, 8), jnp.float32)
    program = str(
        jax.make_jaxpr(lambda q, k, v: chunked_attention(q, k, v, None, None, settings=settings))(*[operand] * 3)
    )
    assert "f32[3,2,512,1024]" in program  # logits of a chunk
    assert "f32[3,2,512,2048]" not in program


@pytest.mark.parametrize("axis", [0, 1])
def test_a_normalization_and_its_gradient(axis: int) -> None:
    x, scale, offset, cotangent = (
        drawn(24, 32),
        drawn((24, 32)[axis]),
        drawn((24, 32)[axis], seed=1),
        drawn(24, 32, seed=2),
    )
    result, (mean, inverse_deviation) = cast(
        "Any", layer_norm(x, scale, offset, axis=axis, epsilon=1e-6, with_residuals=True)
    )
    wide = x.astype(float)
    normal = (wide - wide.mean(axis, keepdims=True)) / np.sqrt(wide.var(axis, keepdims=True) + 1e-6)
    along = (lambda vector: vector[:, None]) if axis == 0 else (lambda vector: vector[None])
    np.testing.assert_allclose(result, normal * along(scale) + along(offset), **CLOSE)

    def weighed(x: Any, scale: Any, offset: Any) -> Any:
        return jnp.sum(layer_norm(x, scale, offset, axis=axis, epsilon=1e-6) * cotangent)  # type: ignore[operator]

    expected = jax.grad(weighed, (0, 1, 2))(x, scale, offset)
    gradients = layer_norm_gradient(mean, inverse_deviation, cotangent, x, scale, offset, axis=axis)
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("outgoing", "equation"), [(True, "ikc,jkc->ijc"), (False, "kjc,kic->ijc")])
def test_a_triangle_multiplication(outgoing: bool, equation: str) -> None:
    n, channels, hidden = 5, 8, 6
    x = drawn(n, n, channels)
    mask: Any = np.random.default_rng(1).random((n, n)) > 0.3
    projection_in, gate_in = drawn(channels, 2, hidden), drawn(channels, 2, hidden, seed=1)
    projection_out, gate_out = drawn(hidden, channels), drawn(channels, channels)
    norms = [drawn(size, seed=seed) for size in (channels, hidden) for seed in (5, 6)]

    def norm(x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * scale + offset

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    normal = norm(x.astype(float), *norms[:2])
    gates, projections = (np.einsum("ijc,cph->pijh", normal, weights) for weights in (gate_in, projection_in))
    left, right = sigmoid(gates) * projections * mask[..., None]
    sums = norm(np.einsum(equation, left, right), *norms[2:])
    operands = (x, mask, projection_in, gate_in, projection_out, gate_out, *norms)
    result = triangle_multiplication(*operands, outgoing=outgoing, epsilon=1e-6)
    np.testing.assert_allclose(result, sums @ projection_out * sigmoid(normal @ gate_out), rtol=1e-4, atol=1e-4)


def test_a_ragged_product_and_a_gathered_sum() -> None:
    lhs, rhs = drawn(12, 8), drawn(3, 8, 4)
    sizes: Any = np.array([5, 0, 7], np.int32)
    dimensions = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    result = ragged_dot(lhs, rhs, sizes, dimensions=dimensions, dtype_out="float32", gated=False)
    expected = [row.astype(float) @ rhs[0 if index < 5 else 2] for index, row in enumerate(lhs)]
    np.testing.assert_allclose(
        result, expected, rtol=2e-2, atol=2e-2
    )  # its product has bfloat16's precision on some CPUs
    weights = drawn(6)
    valid: Any = np.array([1, 1, 0, 1, 1, 1], bool)
    indices: Any = np.array([3, 0, 11, 11, 5, 5])
    rows = lhs.astype(float)[indices] * np.where(valid, weights, 0)[:, None]
    np.testing.assert_allclose(
        combined_rows(lhs, indices, weights, valid, group=3), rows.reshape(2, 3, 8).sum(axis=1), **CLOSE
    )


def _assert_close(results: Any, expected: Any) -> None:
    for result, value in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rhs", "sizes", "published_us", "every_group"),
    [
        ("bf16[128,1536,4096]", [1024] * 128, 776_578.0, True),  # 211 Tflop at the peak of a v5p: 460 ms
        ("bf16[128,1536,4096]", [1024] * 128, 9_000.0, False),
        ("bf16[131072,4096]", [1024] * 128, 776_578.0, True),  # sums over rows
        ("bf16[2,1536,4096]", [65536] * 2, 776_578.0, False),  # twice the work is no other program
    ],
)
def test_a_ragged_time_that_is_long_enough_for_every_group_is_of_another_program(
    rhs: str, sizes: list[int], published_us: float, every_group: bool
) -> None:
    call = Call(len, (array_of("bf16[131072,1536]"), array_of(rhs), np.array(sizes)))
    assert multiplies_every_group(call, chip("v5p"), published_us) == every_group
