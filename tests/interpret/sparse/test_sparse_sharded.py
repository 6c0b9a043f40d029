"""Block-sparse products of arrays that are sharded over a mesh with explicit axes, under `jit` alone."""

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
multiply = functools.partial(systolic.sparse_matmul, implementation=by, precision="highest", chip="v6e")

def put(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)

kept = np.kron(np.array([[1, 0], [1, 1]]), np.ones((128, 128), np.float32))
matrix = normal(256, 256) * kept
sparse = systolic.BlockSparse.from_dense(matrix, block=(128, 128))
causal = systolic.BlockMask.causal((256, 256), (128, 128))
dense, bias = normal(256, 256), normal(256)

def blocks_of(fn):
    return lambda blocks, *arrays: (fn(sparse.with_blocks(blocks), *arrays) ** 2).sum()

def close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-5 * float(abs(np.asarray(other)).max()))

def left(sparse, dense, bias):
    return multiply(sparse, dense, bias=bias, activation="silu")

def right(sparse, dense, bias):
    return multiply(dense, sparse, bias=bias, activation="silu")

exact = functools.partial(jnp.matmul, precision="highest")
wanted = {left: jax.nn.silu(exact(matrix, dense) + bias), right: jax.nn.silu(exact(dense, matrix) + bias)}
specs = [("x",), (None, "y"), ("x", "y")] if by == "xla" else [("x", "y")]
for spec in specs:
    for fn in (left, right) if by == "xla" else (right,):
        given = put(dense, *spec), put(bias, "y")
        close(jax.jit(functools.partial(fn, sparse))(*given), wanted[fn])
        if by == "xla":
            loss = jax.grad(blocks_of(fn), argnums=(0, 1, 2))
            found = jax.jit(loss)(sparse.blocks, *given)
            close(found, loss(sparse.blocks, dense, bias))
            for one, array in zip(found[1:], given, strict=True):
                assert one.sharding.is_equivalent_to(array.sharding, one.ndim), one.sharding
    masked = functools.partial(multiply, mask=causal, dense_out=True)
    close(jax.jit(masked)(put(dense, *spec), put(matrix, "x")), jnp.tril(exact(dense, matrix)))
    if by == "xla":
        squares = jax.grad(lambda *arrays: (masked(*arrays) ** 2).sum(), argnums=(0, 1))
        given = put(dense, *spec), put(matrix, "x")
        found = jax.jit(squares)(*given)
        close(found, squares(dense, matrix))
        for one, array in zip(found, given, strict=True):
            assert one.sharding.is_equivalent_to(array.sharding, one.ndim), one.sharding
assert jax.jit(functools.partial(multiply, rhs=sparse))(put(dense, "x")).sharding.spec == P("x", None)

# In a program for TPUs there is a kernel, and no warning.
if by == "xla":
    rows = jax.ShapeDtypeStruct((512, 256), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = jax.jit(functools.partial(systolic.sparse_matmul, rhs=sparse, chip="v6e")).trace(rows)
        assert traced.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") == 1
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["xla", "interpret"])
def test_each_device_multiplies_its_part(tmp_path: Path, by: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, by)
