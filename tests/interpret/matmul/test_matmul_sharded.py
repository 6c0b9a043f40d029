"""Products of arrays that are sharded over a mesh with explicit axes, under `jit` alone, on virtual devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import functools, itertools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import systolic
from systolic.spec import NoKernelWarning, SpecError

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:4])
random = np.random.default_rng(0)

def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)

def put(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

lhs, rhs, bias, residual = normal(16, 24), normal(24, 32), normal(32), normal(16, 32)

def layer(by, lhs, rhs, bias, residual):
    return systolic.matmul(
        lhs, rhs, bias=bias, activation="silu", residual=residual, precision="highest", implementation=by, chip="v6e"
    )

def plain(lhs, rhs, bias, residual):
    return jax.nn.silu(jnp.matmul(lhs, rhs, precision="highest") + bias) + residual

def close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * float(abs(other).max()))

by = sys.argv[1]
every = [(), ("x",), (None, "y"), ("x", "y"), (("x", "y"),)]
wanted = plain(lhs, rhs, bias, residual)
def squares(fn, *arrays):
    return (fn(*arrays) ** 2).sum()

gradients = jax.grad(functools.partial(squares, plain), argnums=(0, 1, 2, 3))(lhs, rhs, bias, residual)
for left, right in itertools.product(every, every) if by == "xla" else [(("x", "y"), ("y",))]:
    ours = functools.partial(layer, by)
    arrays = put(lhs, *left), put(rhs, *right), put(bias, "y"), put(residual, "x")
    out = jax.jit(ours)(*arrays)
    close(out, wanted)
    if left == ("x",) and right == (None, "y"):
        assert out.sharding.spec == P("x", "y"), out.sharding
    if (left, right) in [(("x",), (None, "y")), (("x",), ("x", "y")), (("x", "y"), ("y",))]:
        found = jax.jit(jax.grad(functools.partial(squares, ours), argnums=(0, 1, 2, 3)))(*arrays)
        close(found, gradients)
        # A gradient is sharded as what it is the gradient of.
        for one, array in zip(found, arrays, strict=True):
            assert one.sharding.is_equivalent_to(array.sharding, one.ndim), (one.sharding, array.sharding)

# A batch, both halves of a gated product, and a product of integers whose k is cut.
x, gate, up = normal(4, 8, 24), normal(24, 32), normal(24, 32)
gated = jax.jit(functools.partial(systolic.gated_matmul, implementation=by, precision="highest", chip="v6e"))
for weights in ((None, "y"), ("y",)):
    close(
        gated(put(x, "x"), put(gate, *weights), put(up, *weights)),
        jax.nn.silu(jnp.matmul(x, gate, precision="highest")) * jnp.matmul(x, up, precision="highest"),
    )
whole, other = random.integers(-9, 9, (16, 24), np.int8), random.integers(-9, 9, (24, 32), np.int8)
product = jax.jit(functools.partial(systolic.matmul, implementation=by, chip="v6e"))
sums = product(put(whole, None, "x"), put(other, "x"))
np.testing.assert_array_equal(sums, whole.astype(np.int32) @ other)

# In a program for TPUs there is a kernel, or one warning that says why there is none.
if by == "xla":
    import warnings
    left_to_xla = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    for its, kernels in ((mesh, True), (left_to_xla, False)):
        arrays = [jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=NamedSharding(its, P("x")))] * 2
        def program(implementation):
            product = jax.jit(functools.partial(systolic.matmul, implementation=implementation, chip="v6e"))
            with warnings.catch_warnings(record=True) as given:
                lowered = product.trace(*arrays).lower(lowering_platforms=("tpu",))
            return lowered.as_text(), [each.category for each in given]
        text, given = program(None)
        assert ("tpu_custom_call" in text) == kernels
        assert given == ([] if kernels else [NoKernelWarning])
        try:
            assert kernels == ("tpu_custom_call" in program("pallas")[0])
        except SpecError as error:
            assert not kernels and "explicit" in str(error)
    rows, sizes = arrays[0], jax.ShapeDtypeStruct((8,), jnp.int32, sharding=NamedSharding(left_to_xla, P("x")))
    matrices = jax.ShapeDtypeStruct((4, 256, 256), jnp.bfloat16, sharding=NamedSharding(left_to_xla, P()))
    grouped = jax.shard_map(
        functools.partial(systolic.grouped_matmul, chip="v6e"),
        mesh=left_to_xla,
        in_specs=(P("x"), P(), P("x")),
        out_specs=P("x"),
    )
    lowered = jax.jit(grouped).trace(rows, matrices, sizes).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()
close(systolic.matmul(put(lhs, "x"), rhs, implementation=by, precision="highest", chip="v6e"), jnp.matmul(lhs, rhs))
"""


@pytest.mark.exhaustive
def test_every_pair_of_shardings_by_xla(tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "xla")


@pytest.mark.exhaustive
def test_by_the_kernel(tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "interpret")
