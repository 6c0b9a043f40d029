"""Gradients and transformations of `systolic.matmul`, against XLA's and against finite differences in float64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matmul_reference import ACTIVATIONS, Call, assert_same, normal, values, wide

import systolic

JAX_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


def sine(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * scale


def shifted(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    return jnp.tanh(x * scale + shift)


Arrays = dict[str, Any]


def call(arrays: Arrays, implementation: Any, **static: Any) -> jax.Array:
    keywords = {key: value for key, value in arrays.items() if key not in ("lhs", "rhs")}
    return systolic.matmul(arrays["lhs"], arrays["rhs"], implementation=implementation, **keywords, **static)


def plain(arrays: Arrays, **static: Any) -> jax.Array:
    """The formula in float32 as anybody would write it in JAX."""
    lhs, rhs = arrays["lhs"], arrays["rhs"]
    lhs = static["lhs_fn"](lhs, *arrays.get("lhs_args", ())) if static.get("lhs_fn") else lhs
    rhs = static["rhs_fn"](rhs, *arrays.get("rhs_args", ())) if static.get("rhs_fn") else rhs
    lhs = lhs.mT if static.get("transpose_lhs") else lhs
    rhs = rhs.mT if static.get("transpose_rhs") else rhs
    z = jnp.matmul(lhs.astype(jnp.float32), rhs.astype(jnp.float32), precision="highest")
    z = z + arrays["bias"] if "bias" in arrays else z
    z = JAX_ACTIVATIONS[static["activation"]](z) if static.get("activation") else z
    z = z + arrays["residual"] if "residual" in arrays else z
    return z * arrays["out_scale"] if "out_scale" in arrays else z


def loss_of(fn: Callable[..., jax.Array], weights: jax.Array) -> Callable[[Arrays], jax.Array]:
    return lambda arrays: (fn(arrays).astype(jnp.float32) * weights).sum()


@pytest.fixture(autouse=True, scope="module")
def _quickly_compiled() -> None:
    """Programs of this file are optimised, unlike those of its neighbours: else gelu is off by more than rounding."""


# Name: arrays beside the operands, what is static. m = 24, k = 40, n = 50.
STACKS: dict[str, tuple[Callable[[], Arrays], dict[str, Any]]] = {
    "nothing": (dict, {}),
    "bias of one element, relu": (lambda: {"bias": normal(1)}, {"activation": "relu"}),
    "bias, gelu, scale of one element": (
        lambda: {"bias": normal(50), "out_scale": jnp.float32(1.5)}, {"activation": "gelu"}),
    "bias, silu, residual, scale": (
        lambda: {"bias": normal(50), "residual": normal(24, 50), "out_scale": normal(1, 50)}, {"activation": "silu"}),
    "residual, scale": (lambda: {"residual": normal(24, 1), "out_scale": normal(24, 50, seed=1)}, {}),
}  # fmt: skip
# Name: arguments of the functions for k first and k last, functions.
INPUTS: dict[str, tuple[dict[str, tuple[tuple[int, ...], ...]], dict[str, Any]]] = {
    "": ({}, {}),
    "functions": ({}, {"lhs_fn": sine, "rhs_fn": jnp.tanh}),
    "arguments": ({"lhs_args": ((24, 1),), "rhs_args": ((40, 1), (1, 50))}, {"lhs_fn": scaled, "rhs_fn": shifted}),
}


def case(stack: str, inputs: str, transpose_lhs: bool, transpose_rhs: bool) -> tuple[Arrays, dict[str, Any]]:
    beside, static = STACKS[stack]
    shapes, functions = INPUTS[inputs]
    turned = {"lhs": transpose_lhs, "rhs": transpose_rhs}
    arrays: Arrays = {"lhs": normal(24, 40), "rhs": normal(40, 50)}
    arrays = {side: array.T if turned[side] else array for side, array in arrays.items()}
    for name, each in shapes.items():
        arrays[name] = tuple(normal(*(shape[::-1] if turned[name[:3]] else shape), seed=3) for shape in each)
    static = {**static, **functions, "transpose_lhs": transpose_lhs, "transpose_rhs": transpose_rhs}
    return {**arrays, **beside()}, static


TURNS = list(itertools.product([False, True], repeat=2))
# Each stack with each input once, and the transposes in turn.
CASES = [
    (stack, inputs, *TURNS[(number + number // 4) % 4])
    for number, (stack, inputs) in enumerate(itertools.product(STACKS, INPUTS))
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("stack", "inputs", "transpose_lhs", "transpose_rhs"), CASES)
def test_gradients_are_xlas(stack: str, inputs: str, transpose_lhs: bool, transpose_rhs: bool) -> None:
    arrays, static = case(stack, inputs, transpose_lhs, transpose_rhs)
    weights = normal(24, 50, seed=7)
    wanted = jax.jit(jax.grad(loss_of(lambda a: plain(a, **static), weights)))(arrays)
    for implementation in ("interpret", "xla"):
        slope = jax.jit(jax.grad(loss_of(lambda a, by=implementation: call(a, by, **static), weights)))
        assert_same(slope(arrays), wanted, 4e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("transpose_lhs", "transpose_rhs"), [(False, False), (True, True)])
def test_gradients_of_plain_products_with_edges(transpose_lhs: bool, transpose_rhs: bool) -> None:
    """Large enough for several steps and edges of every dimension in both products of the backward pass."""
    static = {"transpose_lhs": transpose_lhs, "transpose_rhs": transpose_rhs, "activation": "relu"}
    arrays = {"lhs": normal(300, 257), "rhs": normal(257, 391), "bias": normal(391)}
    arrays = {**arrays, "lhs": arrays["lhs"].T} if transpose_lhs else arrays
    arrays = {**arrays, "rhs": arrays["rhs"].T} if transpose_rhs else arrays
    weights = normal(300, 391, seed=7)
    wanted = jax.grad(loss_of(lambda a: plain(a, **static), weights))(arrays)
    found = jax.grad(loss_of(lambda a: call(a, "interpret", **static), weights))(arrays)
    assert_same(found, wanted, 4e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_gradients_are_finite_differences(activation: str) -> None:
    """The derivative of the formula in NumPy, in float64, along a random direction of each argument."""
    random = np.random.default_rng(0)
    shapes = {"lhs": (9, 13), "rhs": (11, 13), "bias": (11,), "residual": (9, 11), "out_scale": (9, 1)}
    arrays = {name: values(random, shape, np.float32) for name, shape in shapes.items()}
    weights = wide(values(random, (9, 11), np.float32))

    def formula(arrays: dict[str, np.ndarray]) -> float:
        z = arrays["lhs"] @ arrays["rhs"].T + arrays["bias"]
        out = (ACTIVATIONS[activation](z) + arrays["residual"]) * arrays["out_scale"]
        return float((out * weights).sum())

    def loss(given: Arrays) -> jax.Array:
        out = call(given, "interpret", transpose_rhs=True, activation=activation)
        return (out * weights.astype(np.float32)).sum()

    found = jax.grad(loss)({name: jnp.asarray(array) for name, array in arrays.items()})
    exact = {name: wide(array) for name, array in arrays.items()}
    for name, shape in shapes.items():
        direction = random.standard_normal(shape)
        step = 1e-6
        ends = [formula({**exact, name: exact[name] + sign * step * direction}) for sign in (1, -1)]
        assert (wide(found[name]) * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-5)


@pytest.mark.exhaustive
def test_gradients_in_bfloat16() -> None:
    """Half a step of bfloat16 in what is kept of the sum, in the derivative that is multiplied, and in the result."""
    bf16 = jnp.bfloat16
    arrays = {"lhs": normal(40, 200, dtype=bf16), "rhs": normal(200, 72, dtype=bf16), "bias": normal(72, dtype=bf16)}
    weights = normal(40, 72, seed=7)
    exact = {name: array.astype(jnp.float32) for name, array in arrays.items()}
    wanted = jax.grad(loss_of(lambda a: plain(a, activation="silu"), weights))(exact)
    found = jax.grad(loss_of(lambda a: call(a, "interpret", activation="silu"), weights))(arrays)
    assert all(one.dtype == bf16 for one in found.values())
    assert_same({name: one.astype(jnp.float32) for name, one in found.items()}, wanted, 3 * 2.0**-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [((3, 8, 16), (16, 24)), ((2, 1, 8, 16), (3, 16, 24)), ((16,), (3, 16, 24)), ((3, 8, 16), (16,))],
)
def test_gradients_of_batches_and_vectors(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    arrays = {"lhs": normal(*lhs), "rhs": normal(*rhs)}
    shape = jax.eval_shape(jnp.matmul, *arrays.values()).shape
    arrays["residual"] = normal(*shape[-2:])
    weights = normal(*shape, seed=7)
    static = {"activation": "gelu", "lhs_fn": sine}
    wanted, found = (
        jax.jit(jax.grad(loss_of(functools.partial(fn, **static), weights)))(arrays)
        for fn in (plain, functools.partial(call, implementation="interpret"))
    )
    assert_same(found, wanted, 4e-6)


def test_integers_have_no_gradient() -> None:
    lhs, rhs, bias = normal(8, 32), normal(32, 24, dtype=jnp.int8), normal(24)

    def loss(lhs: jax.Array, rhs: jax.Array, bias: jax.Array, by: Any = "interpret") -> jax.Array:
        return systolic.matmul(lhs, rhs, bias=bias, activation="relu", implementation=by).sum()

    found = jax.grad(loss, argnums=(0, 1, 2), allow_int=True)(lhs, rhs, bias)
    assert (found[1].dtype, found[1].shape) == (jax.dtypes.float0, rhs.shape)
    wanted = jax.grad(
        lambda lhs, bias: plain({"lhs": lhs, "rhs": rhs, "bias": bias}, activation="relu").sum(), argnums=(0, 1)
    )(lhs, bias)
    assert_same((found[0], found[2]), wanted, 1e-5)
    both = normal(8, 32, dtype=jnp.int8)
    scale = jax.grad(
        lambda s: systolic.matmul(
            both, rhs, out_scale=s, preferred_element_type=jnp.float32, implementation="interpret"
        ).sum()
    )
    sums = wide(both) @ wide(rhs)  # kept for the backward pass in bfloat16
    np.testing.assert_allclose(scale(0.5), sums.sum(), rtol=0, atol=2.0**-9 * np.abs(sums).sum())


@pytest.mark.exhaustive
def test_gradient_of_a_gradient() -> None:
    arrays = {"lhs": normal(8, 16), "rhs": normal(16, 24), "bias": normal(24)}
    weights = normal(8, 24, seed=7)

    def second(fn: Callable[[Arrays], jax.Array]) -> Arrays:
        first = jax.grad(loss_of(fn, weights))
        return jax.grad(lambda arrays: sum((one**2).sum() for one in jax.tree.leaves(first(arrays))))(arrays)

    static = {"activation": "silu", "lhs_fn": sine}
    assert_same(second(lambda a: call(a, "interpret", **static)), second(lambda a: plain(a, **static)), 1e-5)


# --- transformations -------------------------------------------------------------------------------------------------


def formula(lhs: jax.Array, rhs: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.silu(jnp.matmul(lhs, rhs, precision="highest") + bias)


def test_forward_of_every_case_is_right() -> None:
    """The control: what the gradients above are taken of."""
    for stack, inputs in (
        ("bias, silu, residual, scale", "arguments"),
        ("bias, gelu, scale of one element", "functions"),
    ):
        arrays, static = case(stack, inputs, True, False)
        keywords = {key: value for key, value in arrays.items() if key not in ("lhs", "rhs")}
        lhs, rhs = np.asarray(arrays["lhs"]), np.asarray(arrays["rhs"])
        Call(lhs=lhs, rhs=rhs, keywords={**keywords, **static}).check(call(arrays, "interpret", **static))
