"""JAX transformations of products and of their gradients: jit, checkpoint, vmap, scan, shard_map."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from matmul_reference import assert_same, normal
from quick_compilation import quick_flags

import systolic


def fused(lhs: jax.Array, rhs: jax.Array, bias: jax.Array, implementation: Any = "interpret") -> jax.Array:
    return systolic.matmul(lhs, rhs, bias=bias, activation="silu", implementation=implementation)


def formula(lhs: jax.Array, rhs: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.silu(jnp.matmul(lhs, rhs, precision="highest") + bias)


def grids(fn: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """The parameters of every Pallas call in the jaxpr of a function."""
    found: list[tuple[int, ...]] = []

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                found.append(tuple(equation.params["grid_mapping"].grid))
                continue
            for value in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
            ):
                if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                    visit(getattr(value, "jaxpr", value))

    visit(jax.make_jaxpr(fn)(*args).jaxpr)
    return found


def test_jit() -> None:
    arrays = normal(8, 32), normal(32, 24), normal(24)
    wanted = jax.grad(lambda *a: formula(*a).sum(), argnums=(0, 1, 2))(*arrays)
    np.testing.assert_allclose(jax.jit(fused)(*arrays), formula(*arrays), atol=1e-5)
    assert_same(jax.jit(jax.grad(lambda *a: fused(*a).sum(), argnums=(0, 1, 2)))(*arrays), wanted, 4e-6)


def test_checkpoint() -> None:
    """XLA runs it; for Pallas, whose interpret mode JAX refuses in a checkpoint, the calls in the jaxpr are counted."""
    arrays = normal(8, 32), normal(32, 24), normal(24)
    wanted = jax.grad(lambda *a: formula(*a).sum(), argnums=(0, 1, 2))(*arrays)

    def slope(implementation: Any) -> Callable[..., Any]:
        again = jax.checkpoint(functools.partial(fused, implementation=implementation))
        return jax.grad(lambda *a: again(*a).sum(), argnums=(0, 1, 2))

    for implementation in ("xla", None):
        assert_same(slope(implementation)(*arrays), wanted, 4e-6)
    assert len(grids(slope("pallas"), *arrays)) == 4  # forward, forward again, and two products backward


AXES = [(0, None, None), (None, 0, None), (None, None, 0), (1, 2, 0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("axes", AXES)
def test_vmap(axes: tuple[int | None, ...]) -> None:
    shapes = ((16, 40), (40, 24), (24,))
    arrays = []
    for shape, axis in zip(shapes, axes, strict=True):
        at = None if axis is None else axis % (len(shape) + 1)
        arrays.append(normal(*shape) if at is None else normal(*shape[:at], 3, *shape[at:]))
    np.testing.assert_allclose(jax.vmap(fused, axes)(*arrays), jax.vmap(formula, axes)(*arrays), atol=1e-5)
    found, wanted = (
        [
            jax.jit(jax.vmap(jax.grad(lambda *a, by=by: by(*a).sum(), argnums=(0, 1, 2)), axes))(*arrays),
            jax.jit(jax.grad(lambda *a, by=by: (jax.vmap(by, axes)(*a) ** 2).sum(), argnums=(0, 1, 2)))(*arrays),
        ]
        for by in (fused, formula)
    )
    assert_same(found, wanted, 4e-6)


def test_vmap_is_an_axis_of_the_grid() -> None:
    lhs, rhs = normal(3, 16, 128), normal(3, 128, 128)

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return systolic.matmul(lhs, rhs, implementation="interpret", chip="v5p", tiles=(16, 128, 128))

    assert grids(jax.vmap(product), lhs, rhs) == [(3, 1, 1, 1)]
    assert grids(jax.vmap(product, in_axes=(None, 0)), lhs[0], rhs) == [(3, 1, 1, 1)]
    assert grids(jax.vmap(jax.vmap(product, in_axes=(0, None)), in_axes=(None, 0)), lhs, rhs) == [(3, 3, 1, 1, 1)]
    # With the same rhs for all, the batch are rows: no axis at all.
    rows = systolic.plan(systolic.MatmulSpec.of(48, 128, 128, "float32"), "v5p")
    same = jax.vmap(lambda lhs: systolic.matmul(lhs, rhs[0], implementation="interpret", chip="v5p"))
    assert grids(same, lhs) == [rows.grid[1:]]
    # A batch of its own and vmap's, and the two products of the backward pass.
    assert grids(jax.vmap(product), normal(5, 3, 16, 128), normal(5, 3, 128, 128)) == [(5, 3, 1, 1, 1)]
    slope = jax.grad(lambda *arrays: product(*arrays).sum(), argnums=(0, 1))
    assert [grid[0] for grid in grids(jax.vmap(slope), lhs, rhs)] == [3, 3, 3]


@pytest.mark.exhaustive
def test_scan_over_layers() -> None:
    weights, biases, x = normal(4, 32, 32) / 6, normal(4, 32), normal(8, 32)

    def network(by: Callable[..., jax.Array]) -> Callable[..., Any]:
        def loss(x: jax.Array, weights: jax.Array, biases: jax.Array) -> jax.Array:
            return lax.scan(lambda x, layer: (by(x, *layer), None), x, (weights, biases))[0].sum()

        return jax.value_and_grad(loss, argnums=(0, 1, 2))

    assert_same(network(fused)(x, weights, biases), network(formula)(x, weights, biases), 4e-6)
    by_xla = jax.checkpoint(functools.partial(fused, implementation="xla"))
    assert_same(network(by_xla)(x, weights, biases), network(formula)(x, weights, biases), 4e-6)


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import systolic

mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
random = np.random.default_rng(0)
lhs, rhs = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((64, 136), (136, 120)))
batch = jnp.asarray(random.standard_normal((8, 16, 136)), jnp.float32)

def same(name, found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=4e-6 * float(abs(other).max()), err_msg=name)

def sharded(fn, specs, out):
    return jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=out)

for by in sys.argv[1:]:
    product = lambda *arrays: systolic.matmul(*arrays, activation="silu", implementation=by)
    total = lambda *arrays: jax.lax.psum(systolic.matmul(*arrays, implementation=by), "x")
    plain = lambda *arrays: jax.nn.silu(jnp.matmul(*arrays))
    layouts = {
        "rows": (product, (P("x"), P()), P("x"), plain, (lhs, rhs)),
        "columns": (product, (P(), P(None, "x")), P(None, "x"), plain, (lhs, rhs)),
        "batch": (product, (P("x"), P()), P("x"), plain, (batch, rhs)),
        "sum over k": (total, (P(None, "x"), P("x")), P(), jnp.matmul, (lhs, rhs)),
    }
    for name, (fn, specs, out, wanted, arrays) in layouts.items():
        fn = sharded(fn, specs, out)
        same(name, jax.jit(fn)(*arrays), wanted(*arrays))
        found = jax.jit(jax.grad(lambda *arrays: (fn(*arrays) ** 2).sum(), argnums=(0, 1)))(*arrays)
        same(name, found, jax.grad(lambda *arrays: (wanted(*arrays) ** 2).sum(), argnums=(0, 1))(*arrays))
"""


@pytest.mark.exhaustive
def test_shard_map_over_eight_devices(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    flags = f"{quick_flags()} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, script, "interpret", "xla"],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
