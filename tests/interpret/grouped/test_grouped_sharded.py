"""Grouped products of arrays that are sharded over a mesh with explicit axes, under `jit` alone, on virtual devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import functools, sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import systolic

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:4])
random = np.random.default_rng(0)
by = sys.argv[1]
multiply = functools.partial(systolic.grouped_matmul, precision="highest", implementation=by, chip="v6e")

def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)

def put(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

m, k, n, sizes = 32, 16, 24, (5, 0, 14, 9)
lhs, rhs, up = normal(m, k), normal(4, k, n), normal(4, k, n)
bias, scale, residual, existing = normal(4, n), normal(m), normal(m, n), normal(m, n)
ends = np.cumsum(sizes)
group = np.searchsorted(ends, np.arange(m), side="right")
owned = (group < 4)[:, None]
matrix = np.minimum(group, 3)

def plain(lhs, rhs):
    return jnp.where(owned, jnp.einsum("mk,mkn->mn", lhs, rhs[matrix], precision="highest"), 0)

def fused(lhs, rhs, up, bias, scale, residual, existing):
    gate = jax.nn.silu(plain(lhs, rhs) + bias[matrix])
    return jnp.where(owned, gate * plain(lhs, up) * scale[:, None] + residual, existing)

def ours(lhs, rhs):
    return multiply(lhs, rhs, np.array(sizes))

def ours_fused(lhs, rhs, up, bias, scale, residual, existing):
    beside = {"bias": bias, "row_scale": scale, "residual": residual, "existing_out": existing}
    return multiply(lhs, rhs, np.array(sizes), up=up, activation="silu", **beside)

def close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-5 * float(abs(other).max()))

def squares(fn, *arrays):
    return (fn(*arrays) ** 2).sum()

def agree(fn, reference, arrays, wanted_arrays):
    places = tuple(range(len(arrays)))
    close(jax.jit(fn)(*arrays), reference(*wanted_arrays))
    found = jax.jit(jax.grad(functools.partial(squares, fn), argnums=places))(*arrays)
    close(found, jax.grad(functools.partial(squares, reference), argnums=places)(*wanted_arrays))
    # A gradient is sharded as what it is the gradient of.
    for one, array in zip(found, arrays, strict=True):
        assert one.sharding.is_equivalent_to(array.sharding, one.ndim), (one.sharding, array.sharding)

# Rows; columns; k with a sum; groups with a sum; groups and k; rows over both axes beside matrices that are gathered.
pairs = [
    (("x",), (None, None, "y")), (("x",), ("y",)), ((None, "y"), (None, "y")), (("x", "y"), ("x", "y")),
    ((("x", "y"),), (None, "x", "y")),
]
for left, right in pairs if by == "xla" else [(("x",), ("y",))]:
    arrays = put(lhs, *left), put(rhs, *right)
    agree(ours, plain, arrays, (lhs, rhs))
    if by == "xla":
        arrays += put(up, *right), put(bias, *right[:1]), put(scale, *left[:1])
        arrays += put(residual, *left[:1]), put(existing, None, "x")
        agree(ours_fused, fused, arrays, (lhs, rhs, up, bias, scale, residual, existing))
assert jax.jit(ours)(put(lhs, "x"), put(rhs, None, None, "y")).sharding.spec == P("x", "y")

if by == "xla":
    # Matrices of some of the groups only, and both right-hand sides in one array.
    more, offset = np.array((3, *sizes)), functools.partial(multiply, group_offset=1)
    close(jax.jit(offset)(put(lhs, "x"), put(rhs, "y"), more), offset(lhs, rhs, more))
    both, gated = np.concatenate([rhs, up], axis=2), functools.partial(multiply, side_by_side=True, activation="silu")
    for right in ((None, "y"), ("y",)):
        close(jax.jit(gated)(put(lhs, "x"), put(both, *right), np.array(sizes)), gated(lhs, both, np.array(sizes)))
    # In a program for TPUs there are kernels, for the gradients too, and no warning.
    rows = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    matrices = jax.ShapeDtypeStruct((4, 256, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("y")))
    number = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=NamedSharding(mesh, P()))
    def loss(lhs, rhs, sizes):
        return systolic.grouped_matmul(lhs, rhs, sizes, chip="v6e").astype(jnp.float32).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(rows, matrices, number)
        lowered = traced.lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("tpu_custom_call") == 2
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", [pytest.param("xla", marks=pytest.mark.slow), "interpret"])
def test_each_device_multiplies_its_part(tmp_path: Path, by: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, by)
