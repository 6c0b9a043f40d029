"""`systolic.gated_matmul` in TPU interpret mode against float64, and its gradients against finite differences."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from matmul_reference import ACTIVATIONS, Call, assert_same, normal, values, wide
from selection import examples

import systolic
from systolic.chips import chip
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import SpecError

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_or_threads=1)
JAX_ACTIVATIONS = {"silu": jax.nn.silu, "gelu": jax.nn.gelu, "relu": jax.nn.relu}
MANY = settings(max_examples=examples(6), derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate])
Arrays = tuple[Any, Any, Any]


def check(found: Any, x: Any, w_gate: Any, w_up: Any, activation: str = "silu") -> None:
    """Against float64: both factors' errors are those of `matmul`, and their product is rounded once."""
    x, w_gate, w_up = (np.asarray(array) for array in (x, w_gate, w_up))
    gate, gate_error = Call(lhs=x, rhs=w_gate, keywords={"activation": activation}).wanted()
    up, up_error = Call(lhs=x, rhs=w_up).wanted()
    wanted = gate * up
    error = np.abs(gate) * up_error + np.abs(up) * gate_error + gate_error * up_error
    limits = ml_dtypes.finfo(found.dtype)
    unit = float(limits.eps) / 2
    error = (1 + unit) * error + (unit + 2.0**-24) * np.abs(wanted) + float(limits.smallest_subnormal)
    assert found.shape == wanted.shape
    beyond = np.abs(wide(found) - wanted) - error
    assert (beyond <= 0).all(), f"{beyond.max()} beyond a tolerance of at most {error.max()}"


def config(*tiles: int, **changes: Any) -> KernelConfig:
    tile_m, tile_k, tile_n = tiles
    one = KernelConfig(tiles=Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n), subtile_m=tile_m, subtile_n=tile_n)
    return dataclasses.replace(one, **changes)


CONFIGS: dict[str, KernelConfig] = {
    "auto": config(64, 256, 128),
    "auto, several steps, edges": config(24, 128, 256),
    "auto, other order, subtiles": config(64, 128, 256, grid_order="n", subtile_m=32, subtile_n=128),
    "emit": config(32, 128, 128, pipeline="emit", num_stages=3),
    "manual": config(32, 256, 128, pipeline="manual", num_stages=3),
    "manual in chunks": config(32, 256, 256, pipeline="manual", fill_chunks=2, subtile_n=128),
    "manual in chunks, several steps": config(32, 128, 128, pipeline="manual", fill_chunks=1, grid_order="n"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_pipeline(name: str, dtype: Any) -> None:
    arrays = normal(64, 256, dtype=dtype), normal(256, 256, seed=1, dtype=dtype), normal(256, 256, seed=2, dtype=dtype)
    found = systolic.gated_matmul(*arrays, implementation=CAREFUL, chip="v6e", tiles=CONFIGS[name])
    check(found, *arrays)


SIZES = [1, 7, 31, 64, 100, 128, 129, 211, 256, 300]


@pytest.mark.exhaustive
@MANY
@given(
    sizes=st.tuples(*[st.sampled_from(SIZES)] * 3),
    dtype=st.sampled_from(["float32", "bfloat16", "float8_e5m2"]),
    out=st.sampled_from([None, "float32", "bfloat16"]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    batch=st.sampled_from([(), (), (3,), (2, 2)]),
    name=st.sampled_from(["v5e", "v6e", "v5p", "v7x"]),
    seed=st.integers(0, 2**32),
)
@example(
    sizes=(257, 130, 5), dtype="bfloat16", out=None, activation="silu", batch=(), name="v6e", seed=0
)  # XLA stores the result by columns
def test_every_size(
    sizes: tuple[int, int, int],
    dtype: str,
    out: str | None,
    activation: str,
    batch: tuple[int, ...],
    name: str,
    seed: int,
) -> None:
    m, k, n = sizes
    random = np.random.default_rng(seed)
    shapes = (*batch, m, k), (k, n), (k, n)
    x, w_gate, w_up = (jnp.asarray(values(random, shape, jnp.dtype(dtype))) for shape in shapes)
    found = systolic.gated_matmul(
        x,
        w_gate,
        w_up,
        activation=activation,
        preferred_element_type=out or "float32",
        implementation=CAREFUL,
        chip=name if dtype in chip(name).dtypes else "v7x",
    )
    assert found.dtype == (out or "float32")
    check(found, x, w_gate, w_up, activation)


@pytest.mark.parametrize("implementation", [CAREFUL, "xla"])
def test_vectors_nothing_and_integers(implementation: Any) -> None:
    product = functools.partial(systolic.gated_matmul, implementation=implementation)
    x, w_gate, w_up = normal(40), normal(40, 24, seed=1), normal(40, 24, seed=2)
    check(product(x, w_gate, w_up), x, w_gate, w_up)
    assert product(normal(0, 40), w_gate, w_up).shape == (0, 24)
    np.testing.assert_array_equal(product(normal(3, 0), normal(0, 5), normal(0, 5)), np.zeros((3, 5)))
    whole = normal(8, 40, dtype=jnp.int8), normal(40, 24, dtype=jnp.int8), normal(40, 24, seed=2, dtype=jnp.int8)
    found = product(*whole, activation="relu", chip="v5e")
    assert found.dtype == jnp.float32
    gate, up = (wide(whole[0]) @ wide(weight) for weight in whole[1:])
    np.testing.assert_allclose(found, np.maximum(gate, 0) * up, rtol=3 * 2.0**-24)
    assert product(x.astype(jnp.float16), *(w.astype(jnp.float16) for w in (w_gate, w_up))).dtype == jnp.float16


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_float32_in_parts(precision: str) -> None:
    arrays = normal(16, 300), normal(300, 128, seed=1), normal(300, 128, seed=2)
    found = systolic.gated_matmul(*arrays, precision=precision, implementation=CAREFUL, chip="v6e")
    if precision == "highest":
        check(found, *arrays)
        return
    gate, up = (wide(arrays[0]) @ wide(weight) for weight in arrays[1:])
    sums = [np.abs(wide(arrays[0])) @ np.abs(wide(weight)) for weight in arrays[1:]]
    error = 2.0**-14 * (sums[0] * np.abs(up) * 1.2 + sums[1] * np.abs(gate))  # 16 bits of each operand
    assert (np.abs(found - ACTIVATIONS["silu"](gate) * up) <= error).all()


# --- gradients -------------------------------------------------------------------------------------------------------


def formula(x: Any, w_gate: Any, w_up: Any) -> jax.Array:
    return jax.nn.silu(jnp.matmul(x, w_gate, precision="highest")) * jnp.matmul(x, w_up, precision="highest")


def ours(*arrays: Any, implementation: Any = "interpret", **keywords: Any) -> jax.Array:
    return systolic.gated_matmul(*arrays, implementation=implementation, chip="v6e", **keywords)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("activation", sorted(JAX_ACTIVATIONS))
@pytest.mark.parametrize("sizes", [(24, 40, 50), (128, 256, 128), (9, 129, 300)])
def test_gradients_are_finite_differences(activation: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    arrays = normal(m, k), normal(k, n, seed=1) / k**0.5, normal(k, n, seed=2) / k**0.5
    weights = normal(m, n, seed=7)
    found = jax.grad(lambda *a: (ours(*a, activation=activation) * weights).sum(), argnums=(0, 1, 2))(*arrays)

    def loss(x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray) -> float:
        return float((ACTIVATIONS[activation](x @ w_gate) * (x @ w_up) * wide(weights)).sum())

    random = np.random.default_rng(3)
    exact = [wide(array) for array in arrays]
    for number, slope in enumerate(found):
        direction = random.standard_normal(slope.shape)
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = list(exact)
            moved[number] = exact[number] + sign * step * direction
            ends.append(loss(*moved))
        scale = np.abs(wide(slope) * direction).sum()
        assert (wide(slope) * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-6 * scale)


@pytest.mark.exhaustive
def test_gradients_in_bfloat16() -> None:
    """Half a step of bfloat16 in the slope that is kept, in its product with the cotangent, and in the result."""
    arrays = tuple(
        normal(*shape, seed=seed, dtype=jnp.bfloat16) for seed, shape in enumerate(((40, 200), (200, 72), (200, 72)))
    )
    weights = normal(40, 72, seed=7)

    def slopes(fn: Any, given: Any) -> Any:
        return jax.grad(lambda *a: (fn(*a).astype(jnp.float32) * weights).sum(), argnums=(0, 1, 2))(*given)

    found = slopes(ours, arrays)
    assert all(one.dtype == jnp.bfloat16 for one in found)
    wide_found, wide_arrays = ([one.astype(jnp.float32) for one in each] for each in (found, arrays))
    assert_same(tuple(wide_found), slopes(formula, wide_arrays), 3 * 2.0**-8)


GRADIENT_CONFIGS: dict[str, KernelConfig] = {
    "auto": config(128, 128, 256, subtile_n=128),
    "emit": config(256, 128, 128, pipeline="emit", num_stages=3, subtile_m=128),
    "manual in chunks": config(128, 256, 128, pipeline="manual", fill_chunks=2),
    "manual": config(128, 128, 256, pipeline="manual", num_stages=3, grid_order="n"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRADIENT_CONFIGS)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_gradients_with_every_pipeline(name: str, side_by_side: bool) -> None:
    """The products of a gradient have tiles of their own: here they are given by a planner of the test's."""
    arrays = normal(256, 256), normal(256, 256, seed=1) / 16, normal(256, 256, seed=2) / 16
    planner = systolic.Planner(None)
    plans = planner.plans
    fixed = GRADIENT_CONFIGS[name]

    def planned(spec: Any, on: Any, tiles: Any) -> Any:
        return plans(spec, on, GRADIENT_CONFIGS["manual"] if spec.joined_outputs else fixed)

    planner.plans = planned

    def loss(x: jax.Array, w_gate: jax.Array, w_up: jax.Array) -> jax.Array:
        weights = (jnp.concatenate([w_gate, w_up], -1),) if side_by_side else (w_gate, w_up)
        return (ours(x, *weights, implementation=CAREFUL) ** 2).sum()

    with systolic.use(planner):
        found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays)
    wanted = jax.jit(jax.grad(lambda *arrays: (formula(*arrays) ** 2).sum(), argnums=(0, 1, 2)))(*arrays)
    assert_same(found, wanted, 4e-6)


# Name, and n: where it is not a multiple of 256 the halves are copied; v5p's two cores write outputs of their own.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "n"), [("v6e", 256), ("v5p", 512), ("v6e", 100)])
def test_weights_side_by_side(name: str, n: int) -> None:
    x, both = normal(2, 8, 256), normal(256, 2 * n, seed=1) / 16
    tangents = normal(2, 8, 256, seed=3), normal(256, 2 * n, seed=4) / 16
    by = functools.partial(systolic.gated_matmul, implementation="interpret", chip=name)

    def apart(x: jax.Array, both: jax.Array) -> jax.Array:
        return formula(x, both[:, :n], both[:, n:])

    check(by(x, both), x, both[:, :n], both[:, n:])
    found, wanted = (jax.grad(lambda *a, fn=fn: (fn(*a) ** 2).sum(), argnums=(0, 1))(x, both) for fn in (by, apart))
    assert_same(found, wanted, 4e-6)
    found, wanted = (jax.jvp(fn, (x, both), tangents) for fn in (by, apart))
    assert_same(found, wanted, 1e-5)
    calls = str(jax.make_jaxpr(jax.grad(lambda *a: by(*a, implementation="pallas").sum(), argnums=(0, 1)))(x, both))
    assert calls.count("name=systolic_") == 3
    assert ("concatenate" in calls) == (name == "v5p")


def test_only_what_is_wanted() -> None:
    arrays = normal(8, 40), normal(40, 24, seed=1), normal(40, 24, seed=2)

    def calls(argnums: Any) -> int:
        slope = jax.grad(lambda *a: ours(*a, implementation="pallas").sum(), argnums=argnums)
        return str(jax.make_jaxpr(slope)(*arrays)).count("name=systolic_")

    assert [calls(argnums) for argnums in ((0, 1, 2), (0,), (1, 2), (1,), (2,))] == [3, 2, 2, 2, 2]
    for argnums in ((0,), (1,), (2,), (0, 2)):
        found, wanted = (jax.grad(lambda *a, by=by: by(*a).sum(), argnums=argnums)(*arrays) for by in (ours, formula))
        assert_same(found, wanted, 4e-6)


# --- transformations -------------------------------------------------------------------------------------------------


def test_mistakes() -> None:
    x, w_gate, w_up = normal(8, 40), normal(40, 24), normal(40, 24)
    with pytest.raises(SpecError, match="same shape and dtype"):
        ours(x, w_gate, normal(40, 25))
    with pytest.raises(SpecError, match="same shape and dtype"):
        ours(x, w_gate, w_up.astype(jnp.bfloat16))
    with pytest.raises(SpecError, match="k=41"):
        ours(x, normal(41, 24), normal(41, 24))
    with pytest.raises(SpecError, match="swoosh"):
        ours(x, w_gate, w_up, activation="swoosh")
    with pytest.raises(SpecError, match="even number of columns"):
        ours(x, normal(40, 25))
    with pytest.raises(SpecError, match="rows and columns"):
        ours(x, normal(40), normal(40))
    with pytest.raises(SpecError, match="not an array"):
        ours(x, w_gate, [1.0])
    with pytest.raises(IllegalTilesError):
        ours(x, w_gate, w_up, tiles=(8, 41, 24))
