"""Products across chips with quantized weights: against float64 of the dequantized ones, and their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SETUP = """
import functools, sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found

devices, chip = int(sys.argv[1]), sys.argv[2]
random = np.random.default_rng(0)
mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
interpreted = interpret_params(detect_races=True, uninitialized_memory="nan")
COLUMNS, ROWS, WHOLE = P(None, "model"), P("model"), P()

def gather(x, values, scales, **options):
    return on(systolic.all_gather_matmul, (ROWS, COLUMNS, COLUMNS), COLUMNS, options)(x, values, scales)

# A scale for each column of the whole weight, or of each device's rows of it.
def scatter(x, values, scales, **options):
    specs = COLUMNS, ROWS, WHOLE if scales.shape[0] == 1 else ROWS
    return on(systolic.matmul_reduce_scatter, specs, ROWS, options)(x, values, scales)

def reduce(x, values, scales, **options):
    specs = COLUMNS, ROWS, WHOLE if scales.shape[0] == 1 else ROWS
    return on(systolic.matmul_all_reduce, specs, WHOLE, options)(x, values, scales)

def on(multiply, specs, out, options):
    def run(x, values, scales):
        return multiply(x, systolic.Quantized(values, scales), axis_name="model", chip=chip, **options)
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
"""

# Integers, and scales that are powers of two: no product, sum or dequantized weight is rounded.
VALUES = (
    SETUP
    + """
def check(multiply, rows, k, columns, dtype, value_dtype, blocks=1, **options):
    x = random.integers(-3, 4, (rows, k)).astype(np.float32)
    values = jnp.asarray(random.integers(-8, 9, (k, columns)), value_dtype)
    scales = jnp.exp2(jnp.asarray(random.integers(-3, 4, (blocks, columns)), jnp.float32))
    expected = x.astype(np.float64) @ np.asarray(systolic.Quantized(values, scales).dequantize(), np.float64)
    for implementation in (interpreted, "xla"):
        run = functools.partial(multiply, implementation=implementation, preferred_element_type=jnp.float32, **options)
        out = np.asarray(jax.jit(run)(jnp.asarray(x, dtype), values, scales))
        np.testing.assert_array_equal(out, expected)
        assert implementation == "xla" or not races_found()

check(gather, devices * 5, 128, devices * 256, "bfloat16", "int8")
check(scatter, devices * 5, devices * 128, 256, "bfloat16", "int8")
if devices == 4:
    check(gather, devices * 33, 256, devices * 128, "float32", "int8")
    check(gather, devices * 5, 128, devices * 128, "bfloat16", "float8_e4m3fn")
    check(scatter, devices * 5, devices * 128, 128, "bfloat16", "float8_e5m2", devices)
    check(reduce, devices + 1, devices * 128, 128, "float32", "int8", devices)

# Rows and weights travel and are multiplied as int8: the error is that of the rows.
x = jnp.asarray(random.standard_normal((devices * 40, 256)), jnp.bfloat16)
w = systolic.quantize(jnp.asarray(random.standard_normal((256, devices * 256)), jnp.float32))
wide_x, wide_w = np.asarray(x, np.float64), np.asarray(w.dequantize(), np.float64)
bound = abs(wide_x).max(1, keepdims=True) / 252 * abs(wide_w).sum(0)
for implementation in (interpreted, "xla"):
    options = {"implementation": implementation, "wire_dtype": "int8", "preferred_element_type": jnp.float32}
    out = np.asarray(jax.jit(functools.partial(gather, **options))(x, w.values, w.scales))
    rounding = 2.0**-8 if implementation == "xla" else 2.0**-20  # of the dequantized weight
    assert (abs(out - wide_x @ wide_w) <= bound + rounding * (abs(wide_x) @ abs(wide_w))).all()
assert not races_found()
"""
)

DERIVATIVES = (
    SETUP
    + """
def close(actual, expected):
    for value, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-5 * float(abs(np.asarray(wanted)).max()))

def reference(x, values, scales, activation):
    total = jnp.matmul(x, systolic.Quantized(values, scales).dequantize(), precision="highest")
    return jax.nn.silu(total) if activation else total

def loss(multiply, x, values, scales, **options):
    return (multiply(x, values, scales, **options) ** 2).sum()

normal = lambda *shape: jnp.asarray(random.standard_normal(shape) / 8, jnp.float32)
for multiply, shapes, block in (
    (gather, ((devices * 8, 128), (128, devices * 128)), None),
    (gather, ((devices * 8, 256), (256, devices * 128)), 128),  # by XLA
    (scatter, ((devices * 8, devices * 128), (devices * 128, 128)), 128),
):
    x, w = normal(*shapes[0]), systolic.quantize(normal(*shapes[1]), block=block)
    for activation in (None, "silu"):
        of_reference = functools.partial(loss, functools.partial(reference, activation=activation))
        expected = jax.grad(of_reference, (0, 2))(x, w.values, w.scales)
        # Its gradient runs the other kernel.
        for implementation in ("xla", *([interpreted] if multiply is gather and activation and not block else [])):
            options = {"implementation": implementation, "precision": "highest", "activation": activation}
            mine = functools.partial(loss, multiply, **options)
            close(jax.jit(jax.grad(mine, (0, 2)))(x, w.values, w.scales), expected)
        if activation:
            second = lambda of: jax.grad(lambda x: (jax.grad(of)(x, w.values, w.scales) ** 2).sum())
            mine = functools.partial(loss, multiply, implementation="xla", precision="highest", activation=activation)
            close(jax.jit(second(mine))(x), jax.jit(second(of_reference))(x))
    both = jax.jit(jax.vmap(functools.partial(multiply, implementation="xla", precision="highest"), (0, None, None)))
    close(both(jnp.stack([x, -x]), w.values, w.scales)[1], reference(-x, w.values, w.scales, None))

# The gradient of gathered rows is a kernel that reads the values as they are stored.
x, w = normal(devices * 8, 128), systolic.quantize(normal(128, devices * 128))
traced = jax.jit(jax.grad(functools.partial(loss, gather, implementation="pallas"))).trace(x, w.values, w.scales)
assert "systolic_matmul_reduce_scatter" in str(traced.jaxpr)
"""
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "chip", "cores"),
    [(4, "v6e", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((8, "v6e", 1), (4, "v5p", 2)))],
)
def test_they_are_exact_and_have_no_race(tmp_path: Path, devices: int, chip: str, cores: int) -> None:
    run_on_virtual_devices(VALUES, tmp_path, str(devices), chip, devices=devices, cores=cores)


@pytest.mark.exhaustive
def test_gradients_are_those_of_the_dequantized_product(tmp_path: Path) -> None:
    run_on_virtual_devices(DERIVATIVES, tmp_path, "4", "v6e")
