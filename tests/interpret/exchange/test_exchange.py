"""A ragged all-to-all on virtual devices: rows beside NumPy's, bit by bit, its gradient, and races."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SETUP = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found

DEVICES, OTHERS, PER_DEVICE, DTYPE, KIND = *map(int, sys.argv[1:4]), *sys.argv[4:6]
devices = np.array(jax.devices()[: DEVICES * OTHERS]).reshape(OTHERS, DEVICES)
mesh = Mesh(devices, ("data", "expert"), axis_types=(AxisType.Auto,) * 2)
SLICES, D, random = DEVICES * PER_DEVICE, 256, np.random.default_rng(0)
sizes = {
    "random": random.integers(0, 40, (DEVICES, SLICES)),
    "all rows to one": np.where(np.arange(SLICES) // PER_DEVICE == 1, 90, 0) * np.ones((DEVICES, 1), int),
    "no rows": np.zeros((DEVICES, SLICES), int),
    "whole tiles": np.full((DEVICES, SLICES), 16),
    "single rows": np.ones((DEVICES, SLICES), int),
}[KIND]

def mirrored(array):  # what devices send as what they get
    return array.reshape(DEVICES, DEVICES, PER_DEVICE).transpose(1, 0, 2).reshape(DEVICES, SLICES)

def offsets(sizes):
    gaps = random.integers(0, 4, sizes.shape) * (KIND != "whole tiles")
    return np.cumsum(sizes + gaps, 1) - sizes

begins, arrived = offsets(sizes), mirrored(sizes)
arrivals = offsets(arrived)
targets = mirrored(arrivals)
places = [array.astype("i") for array in (begins, sizes, targets, arrived)]

def values(rows):
    if DTYPE == "int32":
        return jnp.asarray(random.integers(-(2**31), 2**31 - 1, (DEVICES, rows, D)), "int32")
    return jnp.asarray(random.normal(size=(DEVICES, rows, D)), DTYPE)

x, output = values((begins + sizes).max() + 5), values((arrivals + arrived).max() + 5)
expected = np.array(output)
for sender in range(DEVICES):
    for number in range(SLICES):
        begin, size, target = begins[sender, number], sizes[sender, number], targets[sender, number]
        expected[number // PER_DEVICE, target : target + size] = x[sender, begin : begin + size]

def exchange(implementation, **more):
    def local(*given):
        *one, arrivals = [array[0] for array in given] if given[6:] else [*(array[0] for array in given), None]
        options = {"implementation": implementation, "chip": "v6e", "recv_offsets": arrivals}
        return systolic.ragged_all_to_all(*one, axis_name="expert", **options)[None]
    return jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), **more)

# JAX does not know over which axes interpret mode's callbacks vary.
kernel = exchange(interpret_params(detect_races=True, uninitialized_memory="nan"), check_vma=False)
plain = exchange("xla")
"""

ROWS = """
assert "systolic_ragged_all_to_all" in str(jax.make_jaxpr(kernel)(x, output, *places))
np.testing.assert_array_equal(jax.jit(plain)(x, output, *places), expected)
np.testing.assert_array_equal(jax.jit(kernel)(x, output, *places, arrivals.astype("i")), expected)
assert not races_found()
"""

GRADIENT = """
weights = random.normal(size=expected.shape)
for run in (plain, kernel):
    loss = lambda x, output: (weights * run(x, output, *places)).sum()
    to_x, to_output = jax.jit(jax.grad(loss, (0, 1)))(x, output)
    expected_x, expected_output = np.zeros(x.shape), weights.copy()
    for sender in range(DEVICES):
        for number in range(SLICES):
            begin, size, target = begins[sender, number], sizes[sender, number], targets[sender, number]
            replaced = expected_output[number // PER_DEVICE, target : target + size]
            expected_x[sender, begin : begin + size] = replaced
            replaced[:] = 0
    np.testing.assert_allclose(to_x, expected_x, rtol=1e-6)
    np.testing.assert_allclose(to_output, expected_output, rtol=1e-6)
assert not races_found()
out, tangent = jax.jit(lambda *rows: jax.jvp(lambda *rows: plain(*rows, *places), rows, rows))(x, output)
np.testing.assert_array_equal(out, tangent)  # it is linear
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "others", "per_device", "dtype", "kind"),
    [
        (2, 1, 2, "bfloat16", "random"),
        (4, 1, 1, "bfloat16", "all rows to one"),
        (4, 1, 3, "float32", "random"),
        (2, 2, 1, "int32", "random"),  # over one axis of a mesh with two
        (4, 1, 1, "float16", "no rows"),
        (4, 1, 1, "bfloat16", "whole tiles"),
        pytest.param(4, 1, 4, "bfloat16", "single rows", marks=pytest.mark.slow),
        pytest.param(8, 1, 1, "bfloat16", "random", marks=pytest.mark.slow),
    ],
)
def test_rows_of_all_devices_are_where_numpy_puts_them(
    devices: int, others: int, per_device: int, dtype: str, kind: str, tmp_path: Path
) -> None:
    arguments = (str(devices), str(others), str(per_device), dtype, kind)
    run_on_virtual_devices(SETUP + ROWS, tmp_path, *arguments, devices=devices * others)


@pytest.mark.exhaustive
def test_cotangents_travel_back(tmp_path: Path) -> None:
    run_on_virtual_devices(SETUP + GRADIENT, tmp_path, "4", "1", "2", "float32", "random")
