"""Products with quantized weights that are sharded over a mesh with explicit axes, under `jit` alone."""

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
multiply = functools.partial(systolic.matmul, implementation=by, chip="v6e")

def put(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)

m, k, n = 32, 256, 256
lhs, bias, residual = normal(m, k), normal(n), normal(m, n)
by_column = systolic.quantize(normal(k, n), dtype="int8", axis=0)
by_block = systolic.quantize(normal(k, n), dtype="int8", axis=0, block=128)
rows = systolic.quantize(lhs, dtype="int8", axis=-1)

def cut(weight, *spec):
    scales = spec if weight.scales.shape[0] > 1 else (None, *spec[1:])
    return systolic.Quantized(put(weight.values, *spec), put(weight.scales, *scales))

# Which of several ways a kernel takes depends on its sizes; they round floats to bfloat16 at other places.
rtol = 1e-5 if by == "xla" else 1e-2

def close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * float(abs(np.asarray(other)).max()))

def loss(lhs, weight, scales, bias, residual):
    weight = systolic.Quantized(weight.values, scales)
    return (multiply(lhs, weight, bias=bias, activation="silu", residual=residual) ** 2).sum()

with jax.default_matmul_precision("highest"):
    pairs = [(("x",), (None, "y")), ((None, "x"), ("x",)), (("x", "y"), ("y",)), ((), ("x", "y"))]
    for left, right in pairs if by == "xla" else pairs[1:2]:
        for weight in (by_column, by_block) if by == "xla" else (by_block,):
            its = cut(weight, *right)
            close(jax.jit(multiply)(put(lhs, *left), its), multiply(lhs, weight))
            fused = jax.jit(functools.partial(multiply, activation="silu"))
            out = fused(put(lhs, *left), its, bias=put(bias), residual=put(residual, "x"))
            close(out, multiply(lhs, weight, bias=bias, activation="silu", residual=residual))
            # Values of both sides, and rows that are quantized on the way: integer sums are exact.
            its_rows = systolic.Quantized(put(rows.values, *left), put(rows.scales, *left[:1]))
            close(jax.jit(multiply)(its_rows, its), multiply(rows, weight))
            dynamic = functools.partial(multiply, quantize_lhs="int8")
            close(jax.jit(dynamic)(put(lhs, *left), its), dynamic(lhs, weight))
            if by == "xla":
                places = (0, 2, 3, 4)
                given = put(lhs, *left), its, its.scales, put(bias, "y"), put(residual, "x")
                found = jax.jit(jax.grad(loss, argnums=places))(*given)
                close(found, jax.grad(loss, argnums=places)(lhs, weight, weight.scales, bias, residual))
                for at, one in zip(places, found, strict=True):
                    assert one.sharding.is_equivalent_to(given[at].sharding, one.ndim), (at, one.sharding)
    if by == "xla":
        def of_scales(scales, values, weight):
            return (multiply(systolic.Quantized(values, scales), weight) ** 2).sum()
        for left, right in pairs:
            given = put(rows.scales, *left[:1]), put(rows.values, *left), cut(by_block, *right)
            close(jax.jit(jax.grad(of_scales))(*given), jax.grad(of_scales)(rows.scales, rows.values, by_block))
    # Two weights, a scale of the result, and a weight that is not quantized: rows and columns cut, and k.
    gated = functools.partial(systolic.gated_matmul, implementation=by, chip="v6e")
    plain, up = normal(k, n), systolic.quantize(normal(k, n), dtype="int8", axis=0, block=128)
    leaves = zip(jax.tree.leaves(by_block), jax.tree.leaves(up), strict=True)
    beside = systolic.Quantized(*(jnp.concatenate(both, 1) for both in leaves))
    def gated_loss(lhs, gate, up, scales):
        return (gated(lhs, systolic.Quantized(gate.values, scales), up) ** 2).sum()
    for left, right in pairs[:2] if by == "xla" else pairs[:1]:
        its = put(lhs, *left), cut(by_block, *right), cut(up, *right)
        close(jax.jit(gated)(*its), gated(lhs, by_block, up))
        close(jax.jit(gated)(its[0], cut(beside, *right)), gated(lhs, by_block, up))
        scaled = jax.jit(multiply)(its[0], its[1], out_scale=put(bias))
        close(scaled, multiply(lhs, by_block, out_scale=bias))
        of_rows = systolic.Quantized(put(rows.values, *left), put(rows.scales, *left[:1]))
        close(jax.jit(multiply)(of_rows, put(plain, *right)), multiply(rows, plain))
        if by == "xla":
            found = jax.jit(jax.grad(gated_loss, argnums=(0, 3)))(*its, its[1].scales)
            close(found, jax.grad(gated_loss, argnums=(0, 3))(lhs, by_block, up, by_block.scales))
            weight_loss = lambda weight, of_rows: (multiply(of_rows, weight) ** 2).sum()
            close(jax.jit(jax.grad(weight_loss))(put(plain, *right), of_rows), jax.grad(weight_loss)(plain, rows))
assert jax.jit(multiply)(put(lhs, "x"), cut(by_block, None, "y")).sharding.spec == P("x", "y")

# In a program for TPUs there is a kernel, and no warning.
if by == "xla":
    def sharded(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))
    weight = systolic.Quantized(sharded((512, 512), jnp.int4, "y"), sharded((4, 512), jnp.float32, "y"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = jax.jit(functools.partial(systolic.matmul, chip="v6e")).trace(sharded((64, 512), jnp.bfloat16), weight)
        assert traced.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") == 1
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", [pytest.param("xla", marks=pytest.mark.slow), "interpret"])
def test_each_device_multiplies_its_part(tmp_path: Path, by: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, by)


PLAIN = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import systolic

mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
random = np.random.default_rng(0)
m, k, n = 32, 256, 256
lhs = random.standard_normal((m, k)).astype(np.float32)
q = systolic.quantize(random.standard_normal((k, n)).astype(np.float32), "int8", block=128)
of_rows, of_columns, of_k = (P("x"), P(), P("x")), (P(), P(None, "x"), P(None, "x")), (P(None, "x"), P("x"), P())

for rows in (None, "int8"):
    product = functools.partial(systolic.matmul, quantize_lhs=rows, implementation=sys.argv[1], chip="v6e")
    def summed(lhs, q):
        return jax.lax.psum(product(lhs, q), "x")
    # Rows that are quantized where k is cut have scales of their parts.
    cuts = [(product, *of_rows), (product, *of_columns), *([(summed, *of_k)] if rows is None else [])]
    for fn, left, right, out in cuts:
        cut = jax.shard_map(fn, mesh=mesh, in_specs=(left, right), out_specs=out)
        def loss(fn, lhs, q):
            return (fn(lhs, q) ** 2).sum()
        wanted = product(lhs, q), jax.grad(functools.partial(loss, product))(lhs, q)
        found = jax.jit(cut)(lhs, q), jax.jit(jax.grad(functools.partial(loss, cut)))(lhs, q)
        exact = lhs.astype(np.float64) @ np.asarray(q.dequantize()).astype(np.float64)
        assert np.abs(found[0] - exact).max() < 0.02 * np.abs(exact).max()
        for one, other in zip(found, wanted, strict=True):
            # Sums in another order, and tiles of other sizes, which may round weights.
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-2 * np.abs(other).max())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["xla", pytest.param("interpret", marks=pytest.mark.slow)])
def test_plain_shard_map(tmp_path: Path, by: str) -> None:
    """Values, and the derivative in rows, each device with rows, columns or a part of k."""
    run_on_virtual_devices(PLAIN, tmp_path, by)
