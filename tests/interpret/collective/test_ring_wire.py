"""Rows and sums that travel in eight bits: the error has the stated bound, by the kernels and by XLA."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from virtual_devices import run_on_virtual_devices

from systolic.ops.collective.wire import packed, scales_of

SETUP = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found

devices, wire_dtypes, dtypes = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
random = np.random.default_rng(0)
mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
interpreted = interpret_params(detect_races=True, uninitialized_memory="nan")
# The largest relative error of a value, and the largest error in scales; the largest value.
ROUNDING = {"int8": (0, 0.5, 127), "float8_e4m3fn": (2**-4, 2**-10, 448), "float8_e5m2": (2**-3, 2**-17, 57344)}

def product(multiply, implementation, checked=False, **options):
    fn = functools.partial(
        multiply, axis_name="model", implementation=implementation, chip="v6e", precision="highest", **options
    )
    if multiply is systolic.all_gather_matmul:
        specs, out = (P("model"), P(None, "model")), P(None, "model")
    else:
        specs = P(None, "model"), P("model")
        out = P("model") if multiply is systolic.matmul_reduce_scatter else P()
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=out, check_vma=checked))

def wide(*arrays):
    return [np.asarray(array).astype(np.float64) for array in arrays]

def rms(array):
    return np.sqrt(np.mean(np.square(array)))
"""

ROWS = (
    SETUP
    + """
for dtype in dtypes:
    rows = {"float32": 70, "bfloat16": 16}[dtype]
    magnitudes = np.exp(random.standard_normal((devices * rows, 1)) * 4)
    x = jnp.asarray(random.standard_normal((devices * rows, 256)) * magnitudes)
    w = jnp.asarray(random.standard_normal((256, devices * 256)))
    x, w = x.at[3].set(0).astype(dtype), w.astype(dtype)
    wide_x, wide_w = wide(x, w)
    exact = wide_x @ wide_w
    for wire_dtype in wire_dtypes:
        relative, scales, largest = ROUNDING[wire_dtype]
        run = lambda how: np.asarray(product(systolic.all_gather_matmul, how, wire_dtype=wire_dtype)(x, w))
        outs = [run(how) for how in (interpreted, "xla")]
        assert not races_found()
        scale = abs(wide_x).max(1, keepdims=True) / largest
        bound = relative * abs(wide_x) @ abs(wide_w) + scales * (1 + 2**-7) * scale * abs(wide_w).sum(0)
        for out in outs:
            rounding = {"float32": 2.0**-20, "bfloat16": 2.0**-8}[dtype] * (abs(wide_x) @ abs(wide_w))
            error = abs(out.astype(np.float64) - exact)
            assert (error <= bound + rounding).all(), (error / (bound + rounding)).max()
            assert (error > 0).mean() > 0.5, "it was not sent in eight bits"
            np.testing.assert_array_equal(out[3].astype(np.float32), 0)
        if (dtype, wire_dtype) == ("float32", "int8"):
            # If errors of values are even and independent, the variance is that of half a scale each way.
            expected = np.linalg.norm(scale / 12**0.5 * np.linalg.norm(wide_w, axis=0))
            assert 0.9 < np.linalg.norm(outs[0] - exact) / expected < 1.1

if devices == 4:
    x, w = jnp.ones((4 * 32, 128)), jnp.ones((128, 4 * 128))
    run = lambda how: product(systolic.all_gather_matmul, how, wire_dtype=wire_dtypes[0])
    _, back = jax.vjp(run("xla"), x, w)
    dx, dw = back(jnp.asarray(random.standard_normal((4 * 32, 4 * 128)), jnp.float32))
    assert dx.shape == x.shape and dw.shape == w.shape
    poisoned = np.asarray(run(interpreted)(x.at[5, 7].set(jnp.inf).at[40, 0].set(jnp.nan), w))
    assert np.isnan(poisoned[[5, 40]]).all() and np.isfinite(np.delete(poisoned, [5, 40], 0)).all()
"""
)

SUMS = (
    SETUP
    + """
hops = devices // 2
k, columns = devices * 128, 256

def check(dtype, wire_dtype, rows, multiply):
    relative, scales, largest = ROUNDING[wire_dtype]
    scales *= (1 + 2**-7) / largest
    magnitudes = np.exp(random.standard_normal((devices * rows, 1)) * 4)
    x = jnp.asarray(random.standard_normal((devices * rows, k)) * magnitudes).at[3].set(0).astype(dtype)
    w = jnp.asarray(random.standard_normal((k, columns)), dtype)
    wide_x, wide_w = wide(x, w)
    parts = np.stack([a @ b for a, b in zip(np.split(wide_x, devices, 1), np.split(wide_w, devices), strict=True)])
    exact = parts.sum(0)
    largest_parts = abs(parts).max(2, keepdims=True).sum(0)
    # Per hop a sum is off by `relative` of itself, and by `scales` of the largest magnitude in its row.
    bound = ((1 + relative) ** hops - 1) * abs(parts).sum(0)
    bound = bound + scales * hops * (1 + relative + scales) ** hops * largest_parts
    if multiply is systolic.matmul_all_reduce:  # the result is rounded too
        bound = bound + relative * (abs(exact) + bound)
        bound = bound + scales * (1 + relative + scales) ** (hops + 1) * largest_parts
    bound = bound + {"float32": 2.0**-20, "bfloat16": 2.0**-8}[dtype] * (abs(wide_x) @ abs(wide_w))
    for how in ["xla"] if multiply is systolic.matmul_all_reduce else [interpreted, "xla"]:
        out = np.asarray(product(multiply, how, wire_dtype=wire_dtype)(x, w))
        assert how == "xla" or not races_found()
        error = abs(out.astype(np.float64) - exact)
        assert (error <= bound).all(), (dtype, wire_dtype, how, (error / bound).max())
        assert (error > 2**-20 * abs(exact)).mean() > 0.5, "they were not sent in eight bits"
        np.testing.assert_array_equal(out[3].astype(np.float32), 0)
        if (how, dtype, wire_dtype, multiply) == (interpreted, "float32", "int8", systolic.matmul_reduce_scatter):
            # A sum of m devices has m / N of the variance of the whole, and so has the error of its rounding.
            once = abs(exact).max(1, keepdims=True) / 127 / 12**0.5
            has_values = once[:, 0] > 0
            ratio = rms(error[has_values] / once[has_values])
            assert 0.85 < ratio / np.sqrt(devices / 4) < 1.15, ratio

for dtype in dtypes:
    for wire_dtype in wire_dtypes:
        check(dtype, wire_dtype, {"float32": 70, "bfloat16": 16}[dtype], systolic.matmul_reduce_scatter)
if devices == 4:
    check("bfloat16", wire_dtypes[0], 5, systolic.matmul_all_reduce)

    # Rows that travel with a value that is not finite are NaN; the derivative takes the rounding for none.
    x, w = jnp.ones((4 * 32, 4 * 128)), jnp.ones((4 * 128, 128))
    run = lambda multiply, how, **options: product(multiply, how, wire_dtype=wire_dtypes[0], **options)
    poisoned = x.at[5, k - 1].set(jnp.inf).at[40, 0].set(jnp.nan)
    poisoned = np.asarray(run(systolic.matmul_reduce_scatter, interpreted)(poisoned, w))
    assert np.isnan(poisoned[[5, 40]]).all() and np.isfinite(np.delete(poisoned, [5, 40], 0)).all()
    for multiply, checked in (
        (systolic.matmul_reduce_scatter, True), (systolic.matmul_all_reduce, True), (systolic.matmul_all_reduce, False)
    ):
        gradient = jax.grad(lambda x, w: run(multiply, "xla", checked=checked)(x, w).sum(), (0, 1))(x, w)
        np.testing.assert_array_equal(np.asarray(gradient[0]), 128.0)
        np.testing.assert_array_equal(np.asarray(gradient[1]), 128.0)
        tangent = jax.jvp(lambda x: run(multiply, "xla", checked=checked)(x, w), (x,), (x,))[1]
        np.testing.assert_allclose(np.asarray(tangent), 512.0, rtol=1 / 50)
"""
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "wire_dtypes", "dtypes"),
    [
        (4, "int8", "float32,bfloat16"),
        pytest.param(4, "float8_e4m3fn,float8_e5m2", "float32,bfloat16", marks=pytest.mark.slow),
        pytest.param(8, "int8,float8_e4m3fn", "bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("script", [ROWS, SUMS], ids=["rows", "sums"])
def test_the_error_has_the_stated_bound(
    tmp_path: Path, script: str, devices: int, wire_dtypes: str, dtypes: str
) -> None:
    run_on_virtual_devices(script, tmp_path, str(devices), wire_dtypes, dtypes, devices=devices)


def test_a_scale_is_a_bfloat16_above_the_largest_value() -> None:
    largest = np.exp(np.random.default_rng(0).uniform(-60, 60, 4096)).astype(np.float32)
    x = jnp.asarray(largest[:, None] * np.array([[1, -0.5]], np.float32))
    rows = packed(x, "int8")
    assert (rows.dtype, rows.shape) == (jnp.int8, (4096, 130))
    scales = np.asarray(scales_of(rows[:, 2:]))[:, 0].astype(np.float64)
    assert (scales * 127 >= largest * (1 - 1e-6)).all()
    assert (scales * 127 <= largest * (1 + 2**-7 + 1e-6)).all()
    np.testing.assert_array_equal(scales, scales.astype(jnp.bfloat16).astype(np.float64))
