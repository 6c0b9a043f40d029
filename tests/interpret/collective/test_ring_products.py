"""Products across chips on four virtual devices: against float64, without races, and with gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

# Small integers, whose sums are exact in float32, so that nothing is rounded.
PRODUCTS = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found

axis_names = sys.argv[1].split(",")
sizes = tuple(map(int, sys.argv[2].split(",")))
dma = sys.argv[3]
mesh = Mesh(np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes), axis_names)
devices = dict(mesh.shape)["model"]
random = np.random.default_rng(0)
params = interpret_params(detect_races=True, uninitialized_memory="nan", dma_execution_mode=dma)

def integers(*shape):
    return random.integers(-3, 4, shape).astype(np.float32)

def gather(x, w, bias, **options):
    specs = (P("model"), P(None, "model"), P("model")), P(None, "model")
    return on(systolic.all_gather_matmul, specs, options)(x, w, bias)

def scatter(x, w, bias, **options):
    specs = (P(None, "model"), P("model"), P()), P("model")
    return on(systolic.matmul_reduce_scatter, specs, options)(x, w, bias)

def on(multiply, specs, options):
    def run(x, w, bias):
        return multiply(
            x, w, axis_name="model", bias=bias, activation="relu", preferred_element_type=jnp.float32, chip="v6e",
            **options,
        )
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))

def check(multiply, rows, k, columns, dtype, ring):
    x, w, bias = integers(rows, k), integers(k, columns), integers(columns)
    expected = np.maximum(x.astype(np.float64) @ w + bias, 0)
    for implementation in (params, "xla"):
        out = multiply(x.astype(dtype), w.astype(dtype), bias, implementation=implementation, ring=ring)
        np.testing.assert_array_equal(np.asarray(out), expected)
        assert implementation == "xla" or not races_found()

shuffled = tuple(random.permutation(devices).tolist())
check(gather, devices * 5, 128, devices * 128, "bfloat16", None)
check(gather, devices * 64, 256, devices * 256, "float32", shuffled)
check(scatter, devices * 5, devices * 128, 128, "float32", None)
check(scatter, devices * 64, devices * 128, 256, "bfloat16", shuffled)

# Sums travel in bfloat16. On four devices an element is rounded as a sum of 1, of 2, and of 1 device before the last
# rounding; their errors have (1 + 2 + 1) / 4 of its variance, on two devices 1 / 2.
x, w = random.standard_normal((256, devices * 128)), random.standard_normal((devices * 128, 256))
x, w = (jnp.asarray(array, jnp.bfloat16) for array in (x, w))
multiply = functools.partial(systolic.matmul_reduce_scatter, axis_name="model", implementation=params, chip="v6e")
specs = P(None, "model"), P("model")
out = jax.jit(jax.shard_map(multiply, mesh=mesh, in_specs=specs, out_specs=P("model"), check_vma=False))(x, w)
expected = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
rms = lambda array: np.sqrt(np.mean((np.asarray(array, np.float64) - expected) ** 2))
ratio = rms(out) / rms(jnp.asarray(expected, jnp.bfloat16))
np.testing.assert_allclose(ratio, np.sqrt(1 + {2: 1 / 2, 4: 1}[devices]), rtol=0.03)
"""

DERIVATIVES = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params

mesh = Mesh(np.array(jax.devices()[:4]), ("model",))
random = np.random.default_rng(0)

def normal(*shape):
    return jnp.asarray(random.standard_normal(shape) / 8, jnp.float32)

def close(actual, expected):
    for value, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-5 * float(abs(np.asarray(wanted)).max()))

def mlp(x, up, bias, down, implementation, checked):
    # Rows are cut over devices before and after, the hidden axis between.
    def layer(x, up, bias, down):
        options = {"axis_name": "model", "implementation": implementation, "precision": "highest", "chip": "v6e"}
        hidden = systolic.all_gather_matmul(x, up, bias=bias, activation="silu", **options)
        return systolic.matmul_reduce_scatter(hidden, down, **options)
    specs = P("model"), P(None, "model"), P("model"), P("model", None)
    return jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=P("model"), check_vma=checked)(x, up, bias, down)

def summed(x, up, bias, down, implementation, checked):
    # The hidden axis is cut, rows are not: every device has them all, before and after.
    def layer(x, up, bias, down):
        hidden = jax.nn.silu(jnp.matmul(x, up, precision="highest") + bias)
        return systolic.matmul_all_reduce(
            hidden, down, axis_name="model", implementation=implementation, precision="highest", chip="v6e"
        )
    specs = P(), P(None, "model"), P("model"), P("model", None)
    return jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=checked)(x, up, bias, down)

def reference(x, up, bias, down):
    with jax.default_matmul_precision("highest"):
        return jax.nn.silu(x @ up + bias) @ down

arrays = normal(52, 128), normal(128, 512), normal(512), normal(512, 128)
tangents = tuple(map(jnp.ones_like, arrays))
loss = lambda multiply, *arrays: (multiply(*arrays) ** 2).sum()
wanted_gradient = jax.jit(jax.grad(functools.partial(loss, reference), argnums=(0, 1, 2, 3)))
second = lambda gradient: jax.jit(jax.grad(lambda x: (gradient(x, *arrays[1:])[1] ** 2).sum()))(arrays[0])
expected, wanted_second = wanted_gradient(*arrays), second(wanted_gradient)
wanted_tangent = jax.jit(functools.partial(jax.jvp, reference))(arrays, tangents)
runs = [(mlp, "xla", True), (mlp, "xla", False), (mlp, interpret_params(uninitialized_memory="nan"), False)]
runs += [(summed, "xla", True), (summed, "xla", False), (mlp, None, True), (summed, None, True)]  # None: XLA is faster
for layers, implementation, checked in runs:
    multiply = functools.partial(layers, implementation=implementation, checked=checked)
    gradient = jax.grad(functools.partial(loss, multiply), argnums=(0, 1, 2, 3))
    close(jax.jit(gradient)(*arrays), expected)
    if implementation in ("xla", None):
        close(jax.jit(functools.partial(jax.jvp, multiply))(arrays, tangents), wanted_tangent)
        close(second(gradient), wanted_second)
        batched = jax.vmap(multiply, in_axes=(0, None, None, None))
        both = jax.jit(batched)(jnp.stack([arrays[0], 2 * arrays[0]]), *arrays[1:])
        close(both[1], reference(2 * arrays[0], *arrays[1:]))

def finished(x, w, bias, implementation):
    def layer(x, w, bias):
        options = {"axis_name": "model", "implementation": implementation, "precision": "highest", "chip": "v6e"}
        return systolic.matmul_all_reduce(x, w, bias=bias, activation="silu", **options)
    specs = P(None, None, "model"), P("model", None), P()
    return jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=P())(x, w, bias)

def finished_reference(x, w, bias):
    return jax.nn.silu(jnp.matmul(x, w, precision="highest") + bias)

arrays = normal(7, 3, 512), normal(512, 128), normal(128)  # rows that the devices do not divide
for implementation in ("xla", None):
    multiply = functools.partial(finished, implementation=implementation)
    close(jax.jit(multiply)(*arrays), finished_reference(*arrays))
    gradients = [jax.grad(functools.partial(loss, fn), argnums=(0, 1, 2)) for fn in (multiply, finished_reference)]
    close(*(jax.jit(gradient)(*arrays) for gradient in gradients))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("axes", "sizes", "dma"), [("model", "4", "eager"), ("data,model", "2,2", "on_wait")])
def test_they_are_exact_and_have_no_race(tmp_path: Path, axes: str, sizes: str, dma: str) -> None:
    run_on_virtual_devices(PRODUCTS, tmp_path, axes, sizes, dma)


@pytest.mark.exhaustive
def test_gradients_are_those_of_the_whole_product(tmp_path: Path) -> None:
    run_on_virtual_devices(DERIVATIVES, tmp_path)
