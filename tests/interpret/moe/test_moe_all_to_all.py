"""Layers of experts whose rows go to the devices of their experts, beside float64, with their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SETUP = """
import sys
import jax, jax.numpy as jnp, numpy as np, systolic
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from systolic.compat import interpret_params

DEVICES, K, KIND, AXES = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
HERE, D, F, CAPACITY = 2, 128, 128, 5 if KIND == "dropped" else None
axis_type = getattr(AxisType, AXES)
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(axis_type,))
random, tokens, experts = np.random.default_rng(0), DEVICES * 4, DEVICES * HERE
x = random.normal(size=(tokens, D)).astype("f")
gate, up = (random.normal(size=(2, experts, D, F)) / 11).astype("f")
down = (random.normal(size=(experts, F, D)) / 11).astype("f")
ids = {
    "random": random.integers(-1, experts, (tokens, K)),
    "dropped": random.integers(0, 3, (tokens, K)),
    "all tokens to one": np.full((tokens, K), experts - 1),
}[KIND].astype("i")
weights = random.random(ids.shape).astype("f")

def layer(x, ids, weights, *matrices, implementation, axis="expert", form="all-to-all"):
    return systolic.moe(
        x, (ids, weights), *matrices, axis_name=axis, form=form, capacity=CAPACITY, chip="v6e",
        implementation=implementation, precision="highest",
    )

def cut(implementation, **more):
    local = lambda *given: layer(*given, implementation=implementation)
    return jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), **more)

# JAX does not know over which axes interpret mode's callbacks vary.
kernels = cut(interpret_params(uninitialized_memory="nan"), check_vma=False)
"""

VALUES = """
is_kept, rows_of = ids >= 0, np.zeros(experts, int)
expected = np.zeros((tokens, D))
for token, choice in np.ndindex(ids.shape):
    expert = ids[token, choice]
    if expert < 0:
        continue
    rows_of[expert] += 1
    if CAPACITY and rows_of[expert] > CAPACITY:
        is_kept[token, choice] = False
        continue
    row = x[token].astype(np.float64)
    product = row @ gate[expert]
    hidden = product / (1 + np.exp(-product)) * (row @ up[expert])
    expected[token] += weights[token, choice] * (hidden @ down[expert])
if K == 1:  # nothing of a token without an expert, or above the capacity, reaches another
    x[~is_kept[:, 0]], weights[~is_kept] = np.nan, np.nan
given = jax.device_put((x, ids, weights, gate, up, down), NamedSharding(mesh, P("expert")))
with jax.set_mesh(mesh):
    assert "systolic_ragged_all_to_all" in str(jax.make_jaxpr(kernels)(*given))
    np.testing.assert_allclose(jax.jit(kernels)(*given), expected, atol=3e-5)
    np.testing.assert_allclose(jax.jit(cut("xla"))(*given), expected, atol=3e-5)
"""

GRADIENTS = """
given = x, weights, gate, up, down

def gradients(run):
    loss = lambda x, weights, *matrices: (run(x, ids, weights, *matrices) ** 2).sum()
    return jax.jit(jax.grad(loss, range(5)))(*given)

expected = gradients(lambda *given: layer(*given, implementation="xla", axis=None, form=None))
run = cut("xla") if sys.argv[5] == "xla" else kernels
for ours, whole in zip(gradients(run), expected, strict=True):
    np.testing.assert_allclose(ours, whole, atol=2e-4)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "top_k", "kind", "axes"),
    [
        (4, 1, "dropped", "Explicit"),
        pytest.param(4, 2, "random", "Explicit", marks=pytest.mark.slow),
        pytest.param(4, 2, "all tokens to one", "Auto", marks=pytest.mark.slow),
        pytest.param(4, 1, "random", "Explicit", marks=pytest.mark.slow),
        pytest.param(8, 8, "random", "Auto", marks=pytest.mark.slow),
        pytest.param(8, 8, "dropped", "Auto", marks=pytest.mark.slow),
    ],
)
def test_a_layer_by_all_to_all_is_that_of_float64(
    devices: int, top_k: int, kind: str, axes: str, tmp_path: Path
) -> None:
    run_on_virtual_devices(SETUP + VALUES, tmp_path, str(devices), str(top_k), kind, axes, devices=devices)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "kind", "how"),
    [(4, "random", "xla"), (4, "dropped", "xla"), pytest.param(2, "random", "kernels", marks=pytest.mark.slow)],
)
def test_its_gradients_are_those_of_one_device(devices: int, kind: str, how: str, tmp_path: Path) -> None:
    arguments = (str(devices), "2", kind, "Auto", how)
    run_on_virtual_devices(SETUP + GRADIENTS, tmp_path, *arguments, devices=devices)
