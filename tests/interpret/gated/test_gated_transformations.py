"""JAX transformations of gated products and of their gradients."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from matmul_reference import assert_same, normal

import systolic


def formula(x: Any, w_gate: Any, w_up: Any) -> jax.Array:
    return jax.nn.silu(jnp.matmul(x, w_gate, precision="highest")) * jnp.matmul(x, w_up, precision="highest")


def ours(*arrays: Any, implementation: Any = "interpret", **keywords: Any) -> jax.Array:
    return systolic.gated_matmul(*arrays, implementation=implementation, chip="v6e", **keywords)


@pytest.mark.exhaustive
def test_higher_derivatives_and_forward_mode() -> None:
    arrays = normal(8, 16), normal(16, 24, seed=1), normal(16, 24, seed=2)
    changes = tuple(normal(*array.shape, seed=9) for array in arrays)
    for moving in ((0, 1, 2), (0,), (2,)):
        tangents = tuple(change if at in moving else jnp.zeros_like(change) for at, change in enumerate(changes))
        found, wanted = (jax.jvp(by, arrays, tangents) for by in (ours, formula))
        assert_same(found, wanted, 1e-5)

    def second(by: Any) -> Any:
        first = jax.grad(lambda *a: by(*a).sum(), argnums=(0, 1, 2))
        return jax.grad(lambda *a: sum((one**2).sum() for one in first(*a)), argnums=(0, 1, 2))(*arrays)

    assert_same(second(ours), second(formula), 1e-5)
    found, wanted = (
        jax.jvp(jax.grad(lambda x, by=by: by(x, *arrays[1:]).sum()), arrays[:1], changes[:1]) for by in (ours, formula)
    )
    assert_same(found, wanted, 1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", [(0, None, None), (1, 2, 0), (None, None, 1)])
def test_vmap(axes: tuple[int | None, ...]) -> None:
    shapes = (16, 40), (40, 24), (40, 24)
    arrays = [
        normal(*(shape if axis is None else (*shape[:axis], 3, *shape[axis:])), seed=seed)
        for seed, (shape, axis) in enumerate(zip(shapes, axes, strict=True))
    ]
    assert_same(jax.vmap(ours, axes)(*arrays), jax.vmap(formula, axes)(*arrays), 1e-5)
    found, wanted = (
        jax.jit(jax.grad(lambda *a, by=by: (jax.vmap(by, axes)(*a) ** 2).sum(), argnums=(0, 1, 2)))(*arrays)
        for by in (ours, formula)
    )
    assert_same(found, wanted, 4e-6)


def test_batch_of_x_is_rows() -> None:
    arrays = normal(2, 3, 8, 40), normal(40, 24, seed=1), normal(40, 24, seed=2)
    found, wanted = (
        jax.grad(lambda *a, by=by: (by(*a) ** 2).sum(), argnums=(0, 1, 2))(*arrays) for by in (ours, formula)
    )
    assert_same(found, wanted, 4e-6)
    text = str(jax.make_jaxpr(functools.partial(ours, implementation="pallas"))(*arrays))
    assert "name=systolic_gated_float32_48_40_24" in text


def test_scan_and_checkpoint() -> None:
    layers, x = (normal(3, 32, 32) / 6, normal(3, 32, 32, seed=1) / 6), normal(8, 32)

    def network(by: Any) -> Any:
        def loss(x: jax.Array, layers: Any) -> jax.Array:
            return lax.scan(lambda x, layer: (by(x, *layer), None), x, layers)[0].sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(x, layers)

    wanted = network(formula)
    assert_same(network(ours), wanted, 4e-6)
    assert_same(network(jax.checkpoint(functools.partial(ours, implementation="xla"))), wanted, 4e-6)


def test_shard_map() -> None:
    """Rows over one device: under `shard_map` what is the same everywhere has to be summed."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = PartitionSpec("data"), PartitionSpec()
    arrays = normal(16, 40), normal(40, 24, seed=1), normal(40, 24, seed=2)
    by = functools.partial(ours, implementation="xla")
    sharded = jax.shard_map(by, mesh=mesh, in_specs=(rows, whole, whole), out_specs=rows)
    found, wanted = (
        jax.jit(jax.value_and_grad(lambda *a, fn=fn: (fn(*a) ** 2).sum(), argnums=(0, 1, 2)))(*arrays)
        for fn in (sharded, formula)
    )
    assert_same(found, wanted, 4e-6)
