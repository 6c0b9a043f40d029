"""The kernels of a layer whose tokens and sums of tokens are in VMEM beside float64, in TPU interpret mode."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import systolic
from systolic.chips import CHIPS
from systolic.compat import interpret_params, races_found
from systolic.ops.moe.blocks import ExpertsSpec
from systolic.ops.moe.fused.rules import FusedSchedules
from systolic.ops.moe.matrices import MatrixForm

TOKENS, D, F, EXPERTS = 48, 256, 256, 8
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.normal(size=(TOKENS, D)), jnp.bfloat16)
GATE, UP, DOWN = (
    jnp.asarray(RANDOM.normal(size=(EXPERTS, *shape)) / 16, jnp.bfloat16) for shape in ((D, F), (D, F), (F, D))
)
CAREFUL = interpret_params(detect_races=True, uninitialized_memory="nan")
LARGE = CHIPS["v6e"]
# With so little VMEM both kernels have two tiles of columns; with less, rows are read again for the second one.
SMALL, LEAST = (dataclasses.replace(LARGE, usable_vmem_bytes_per_core=kib * 2**10) for kib in (800, 600))
FUSED: dict[str, Any] = {"form": "fused", "chip": "v6e", "implementation": CAREFUL}
FORMATS: dict[str, dict[str, Any]] = {
    "int8": {"dtype": "int8"},
    "int4, 128": {"dtype": "int4", "block": 128},
    "e4m3, 128 × 128": {"dtype": "e4m3", "axis": (-2, -1), "block": (128, 128)},
}


def in_float64(array: Any) -> np.ndarray:
    if not isinstance(array, systolic.Quantized):
        return np.asarray(jnp.asarray(array, jnp.float32), np.float64)
    scales = np.asarray(array.scales, np.float64)
    for axis, block in enumerate(array.blocks):
        scales = scales.repeat(block, axis)
    return np.asarray(array.values.astype("float32"), np.float64) * scales


def silu(total: np.ndarray) -> np.ndarray:
    return total / (1 + np.exp(-total))


def expected(
    x: Any,
    ids: np.ndarray,
    weights: np.ndarray,
    matrices: Any = (GATE, UP, DOWN),
    activation: Callable[[np.ndarray], np.ndarray] = silu,
    capacity: int | None = None,
) -> np.ndarray:
    """Compute the layer in float64, choice by choice; ids out of range are of no expert, nor those above capacity."""
    gate, up, down = (None if matrix is None else in_float64(matrix) for matrix in matrices)
    assert gate is not None
    assert down is not None
    rows, taken = in_float64(x), np.zeros(len(gate), int)
    out = np.zeros((len(rows), down.shape[2]))
    for token, choice in np.ndindex(ids.shape):
        expert = ids[token, choice]
        if not 0 <= expert < len(gate) or taken[expert] == capacity:
            continue
        taken[expert] += 1
        hidden = activation(rows[token] @ gate[expert])
        if up is not None:
            hidden = hidden * (rows[token] @ up[expert])
        out[token] += weights[token, choice] * (hidden @ down[expert])
    return out


def check(out: Any, wanted: np.ndarray) -> None:
    """Compare with float64: rows of hidden are rounded to 8 bits, and so is the result."""
    assert not races_found()
    np.testing.assert_allclose(in_float64(out), wanted, atol=2**-7 * np.abs(wanted).max())


@functools.cache
def compiled(capacity: int | None = None, chip: Any = "v6e") -> Callable[..., jax.Array]:
    options = {**FUSED, "chip": chip, "capacity": capacity}
    return jax.jit(lambda x, ids, weights: systolic.moe(x, (ids, weights), GATE, UP, DOWN, **options))


@st.composite
def routings(draw: st.DrawFn, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights of a few experts or of all, some twice by one token, -1 and others out of range among them."""
    names = [-1, *range(EXPERTS), EXPERTS, 2**30]
    shares = draw(st.lists(st.integers(0, 9), min_size=len(names), max_size=len(names)).filter(any))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    ids = random.choice(names, (TOKENS, top_k), p=np.array(shares) / sum(shares)).astype(np.int32)
    return ids, random.random(ids.shape, np.float32)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("top_k", "capacity", "chip"), [(1, None, SMALL), (2, None, LARGE), (3, 5, LEAST), (8, None, LEAST)]
)
def test_a_layer_is_the_weighted_sum_of_experts(top_k: int, capacity: int | None, chip: systolic.Chip) -> None:
    layer = compiled(capacity, chip)

    @settings(max_examples=examples(100))
    @given(routings(top_k))
    def are_those_of_float64(routing: tuple[np.ndarray, np.ndarray]) -> None:
        check(layer(X, *routing), expected(X, *routing, capacity=capacity))

    are_those_of_float64()


def test_chips_with_little_vmem_cut_columns() -> None:
    floats = MatrixForm(dtype="bfloat16")
    sizes = {"tokens": TOKENS, "choices": 3 * TOKENS, "experts": EXPERTS, "d": D, "f": F, "products": 2}
    spec = ExpertsSpec(devices=1, dtype="bfloat16", matrices=floats, down=floats, **sizes)
    cut = [FusedSchedules.of(spec, chip) for chip in (LARGE, SMALL, LEAST)]
    assert [(kernels.products.tiles, kernels.sums.tiles) for kernels in cut] == [(1, 1), (2, 2), (2, 2)]
    assert [kernels.sums.keeps_rows for kernels in cut] == [True, True, False]


@pytest.mark.exhaustive
def test_all_tokens_to_one_of_two_experts() -> None:
    x, matrices = X[:16, :128], [matrix[:2, :128, :128] for matrix in (GATE, UP, DOWN)]
    ids, weights = np.ones((16, 1), np.int32), RANDOM.random((16, 1), np.float32)
    out = systolic.moe(x, (ids, weights), *matrices, **FUSED)
    check(out, expected(x, ids, weights, matrices))


@pytest.mark.exhaustive
@pytest.mark.parametrize("capacity", [None, 5])
def test_nothing_of_a_dropped_token_reaches_another(capacity: int | None) -> None:
    """Above the capacity, and without an expert, a token of NaN with a weight of NaN changes no other token."""
    ids, weights = np.full((TOKENS, 2), 2, np.int32), RANDOM.random((TOKENS, 2), np.float32)
    ids[:, 1] = -1
    ids[:2] = -1
    dropped = [0, 1] if capacity is None else np.r_[0, 1, 7:TOKENS]
    x = X.at[np.array(dropped)].set(jnp.nan)
    given_weights = np.where(ids < 0, np.nan, weights).astype(np.float32)
    given_weights[dropped] = np.nan
    kept = ids.copy()
    kept[dropped] = -1
    check(compiled(capacity)(x, ids, given_weights), expected(X, kept, weights))


@pytest.mark.exhaustive
@pytest.mark.parametrize("chip", [LARGE, SMALL, LEAST], ids=["large", "small", "least"])
def test_logits_choose_experts(chip: systolic.Chip) -> None:
    """No token has an expert twice, so that sums are added in another order; equal logits choose the first experts."""
    logits = np.random.default_rng(2).integers(0, 3, (TOKENS, EXPERTS)).astype(np.float32)
    out = jax.jit(lambda *given: systolic.moe(*given, top_k=3, **{**FUSED, "chip": chip}))(X, logits, GATE, UP, DOWN)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    shares = np.exp(np.take_along_axis(logits, ids, 1).astype(np.float64))
    check(out, expected(X, ids, shares / shares.sum(1, keepdims=True)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("tokens", "experts", "routing"),
    [
        (256, 4, "one"),  # blocks of 160 and of 64 rows
        (256, 4, "half"),
        pytest.param(1296, 2, "half", marks=pytest.mark.slow),  # blocks have 640 rows at most
    ],
)
def test_experts_with_more_rows_than_a_block_has(tokens: int, experts: int, routing: str) -> None:
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(tokens, 128)), jnp.bfloat16)
    shapes = (128, 128), (128, 128), (128, 128)
    matrices = [jnp.asarray(random.normal(size=(experts, *shape)) / 11, jnp.bfloat16) for shape in shapes]
    ids = np.full((tokens, 2), experts - 1, np.int32)
    if routing == "half":
        ids[random.random(ids.shape) < 0.5] = 0
    weights = random.random(ids.shape, np.float32)
    out = jax.jit(lambda *given: systolic.moe(x, given, *matrices, **FUSED))(ids, weights)
    check(out, expected(x, ids, weights, matrices))


@pytest.mark.exhaustive
@pytest.mark.parametrize("gate_form", FORMATS)
@pytest.mark.parametrize("down_form", [None, *FORMATS])
@pytest.mark.paired
def test_codes_are_multiplied_as_they_are_stored(gate_form: str, down_form: str | None) -> None:
    gate, up = (systolic.quantize(matrix, **FORMATS[gate_form]) for matrix in (GATE, UP))
    down = DOWN if down_form is None else systolic.quantize(DOWN, **FORMATS[down_form])
    ids, weights = RANDOM.integers(-1, EXPERTS, (TOKENS, 2)).astype(np.int32), RANDOM.random((TOKENS, 2), np.float32)
    options = {**FUSED, "chip": LEAST}
    out = jax.jit(lambda x, *given: systolic.moe(x, (ids, weights), *given, **options))(X, gate, up, down)
    check(out, expected(X, ids, weights, (gate, up, down)))


ACTIVATIONS: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "none": (None, lambda total: total),
    "relu": ("relu", lambda total: np.maximum(total, 0)),
    "a function": (lambda total: jnp.minimum(total, 0.5) + 1, lambda total: np.minimum(total, 0.5) + 1),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.paired
def test_gated_or_not_with_any_activation(activation: str, gated: bool) -> None:
    function, in_numpy = ACTIVATIONS[activation]
    ids, weights = RANDOM.integers(0, EXPERTS, (TOKENS, 2)).astype(np.int32), RANDOM.random((TOKENS, 2), np.float32)
    matrices = GATE, UP if gated else None, DOWN
    out = jax.jit(lambda x: systolic.moe(x, (ids, weights), *matrices, activation=function, **FUSED))(X)
    check(out, expected(X, ids, weights, matrices, in_numpy))


@pytest.mark.exhaustive
def test_derivatives_are_those_of_sorted_rows() -> None:
    """Interpreted they take minutes, so XLA computes them here, on the way on which a TPU takes kernels."""
    logits = np.random.default_rng(5).normal(size=(TOKENS, EXPERTS)).astype(np.float32)
    operands = X, logits, GATE, UP, DOWN

    def derivatives(form: Any, *given: Any) -> Any:
        layer = functools.partial(systolic.moe, top_k=2, chip="v6e", form=form)
        out, tangent = jax.jvp(layer, given, given)
        return out, tangent, jax.vjp(layer, *given)[1](tangent)

    programs = [functools.partial(derivatives, form) for form in ("fused", "sorted")]
    for text in (str(jax.make_jaxpr(program)(*operands)) for program in programs):
        assert "systolic_grouped" in text
        assert "systolic_fused" not in text
    for ours, others in zip(*(jax.tree.leaves(jax.jit(program)(*operands)) for program in programs), strict=True):
        np.testing.assert_array_equal(in_float64(ours), in_float64(others))


@pytest.mark.exhaustive
def test_it_works_under_vmap_and_scan() -> None:
    ids, weights = RANDOM.integers(0, EXPERTS, (2, TOKENS, 2)).astype(np.int32), np.ones((2, TOKENS, 2), np.float32)
    x = jnp.stack([X, -X[::-1]])
    out = jax.jit(jax.vmap(compiled()))(x, ids, weights)
    for number in range(2):
        check(out[number], expected(x[number], ids[number], weights[number]))

    def step(x: jax.Array, routing: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return compiled()(x, *routing), None

    last, _ = jax.jit(lambda x, *routings: jax.lax.scan(step, x, routings))(X, ids, weights)
    first = jnp.asarray(expected(X, ids[0], weights[0]), jnp.bfloat16)
    # The second layer's rows differ from these by the rounding of the first one.
    second = expected(first, ids[1], weights[1])
    np.testing.assert_allclose(in_float64(last), second, atol=2**-5 * np.abs(second).max())
