"""Rows that travel as int8: the error has the stated bound, by the kernel and by XLA."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from virtual_devices import run_on_virtual_devices

from systolic.ops.collective.wire import packed, scales_of

SCRIPT = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found

devices = int(sys.argv[1])
random = np.random.default_rng(0)
mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
interpreted = interpret_params(detect_races=True, uninitialized_memory="nan")

def product(implementation, **options):
    multiply = functools.partial(
        systolic.all_gather_matmul, axis_name="model", implementation=implementation, chip="v6e",
        wire_dtype="int8", precision="highest", **options,
    )
    specs = P("model"), P(None, "model")
    return jax.jit(jax.shard_map(multiply, mesh=mesh, in_specs=specs, out_specs=P(None, "model"), check_vma=False))

for dtype, rows in (("float32", 70), ("bfloat16", 16)):
    magnitudes = np.exp(random.standard_normal((devices * rows, 1)) * 4)
    x = jnp.asarray(random.standard_normal((devices * rows, 256)) * magnitudes)
    w = jnp.asarray(random.standard_normal((256, devices * 256)))
    x, w = x.at[3].set(0).astype(dtype), w.astype(dtype)
    outs = [np.asarray(product(how)(x, w)) for how in (interpreted, "xla")]
    assert not races_found()
    wide_x, wide_w = (np.asarray(array).astype(np.float64) for array in (x, w))
    exact = wide_x @ wide_w
    bound = abs(wide_x).max(1, keepdims=True) / 252 * abs(wide_w).sum(0)
    for out in outs:
        rounding = {"float32": 2.0**-20, "bfloat16": 2.0**-8}[dtype] * (abs(wide_x) @ abs(wide_w))
        error = abs(out.astype(np.float64) - exact)
        assert (error <= bound + rounding).all()
        assert (error > 0).mean() > 0.5, "it was not sent as int8"
        np.testing.assert_array_equal(out[3].astype(np.float32), 0)
    # If errors of values are even and independent, the variance is that of half a scale each way.
    scale = abs(wide_x).max(1, keepdims=True) / 127
    expected = np.linalg.norm(scale / 12**0.5 * np.linalg.norm(wide_w, axis=0))
    assert dtype == "bfloat16" or 0.9 < np.linalg.norm(outs[0] - exact) / expected < 1.1

if devices == 4:
    x, w = jnp.ones((4 * 32, 128)), jnp.ones((128, 4 * 128))
    _, back = jax.vjp(product("xla"), x, w)
    dx, dw = back(jnp.asarray(random.standard_normal((4 * 32, 4 * 128)), jnp.float32))
    assert dx.shape == x.shape and dw.shape == w.shape
    poisoned = np.asarray(product(interpreted)(x.at[5, 7].set(jnp.inf).at[40, 0].set(jnp.nan), w))
    assert np.isnan(poisoned[[5, 40]]).all() and np.isfinite(np.delete(poisoned, [5, 40], 0)).all()
"""


@pytest.mark.parametrize("devices", [4, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_the_error_has_the_stated_bound(tmp_path: Path, devices: int) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, str(devices), devices=devices)


def test_a_scale_is_a_bfloat16_above_the_largest_value() -> None:
    largest = np.exp(np.random.default_rng(0).uniform(-60, 60, 4096)).astype(np.float32)
    x = jnp.asarray(largest[:, None] * np.array([[1, -0.5]], np.float32))
    rows = packed(x)
    assert (rows.dtype, rows.shape) == (jnp.int8, (4096, 130))
    scales = np.asarray(scales_of(rows[:, 2:]))[:, 0].astype(np.float64)
    assert (scales * 127 >= largest * (1 - 1e-6)).all()
    assert (scales * 127 <= largest * (1 + 2**-7 + 1e-6)).all()
    np.testing.assert_array_equal(scales, scales.astype(jnp.bfloat16).astype(np.float64))
