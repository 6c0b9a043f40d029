"""Tokens and sums that travel round a ring of devices: rows in the order of experts, and sums beside float64."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SUMS = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found
from systolic.ops.engine.backend import backend_of
from systolic.ops.moe.permuting import Summing
from systolic.ops.moe.ring.summing import combined_over_devices
from systolic.ops.moe.routing import sorted_by_expert

DEVICES, D, HERE, K = int(sys.argv[2]), 128, 2, 2
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(AxisType.Auto,))
random, tokens, experts = np.random.default_rng(0), DEVICES * 256, DEVICES * HERE
ids = {
    "random": random.integers(0, experts, (tokens, K)),
    "all tokens to one": np.full((tokens, K), 1),
    "none to most": random.choice([-1, 1], (tokens, K)),
}[sys.argv[1]].astype("i")
weights = random.random(ids.shape).astype("f")
results = random.normal(size=(DEVICES * ids.size, D)).astype("f")  # rows of each device's experts, and room

def sums(implementation):
    def local(results, weights):
        choices = sorted_by_expert(ids - HERE * jax.lax.axis_index("expert"), HERE, None, DEVICES)
        summing = Summing(backend=backend_of(implementation, "v6e", None), dtype_out="float32", used_rows=None)
        return combined_over_devices(summing, "expert", results, weights, choices)
    # JAX does not know over which axes interpret mode's callbacks vary.
    return jax.shard_map(local, mesh=mesh, in_specs=(P("expert"), P()), out_specs=P("expert"), check_vma=False)

expected = np.zeros((tokens, D))
for device, rows in enumerate(results.reshape(DEVICES, -1, D).astype(np.float64)):
    here = (ids >= device * HERE) & (ids < (device + 1) * HERE)
    order = np.argsort(np.where(here, ids, experts).reshape(-1), kind="stable")
    choices = order[: here.sum()]
    np.add.at(expected, choices // K, weights.reshape(-1)[choices, None] * rows[: here.sum()])

kernel = sums(interpret_params(detect_races=sys.argv[1] != "random", uninitialized_memory="nan"))
with jax.set_mesh(mesh):
    assert "systolic_combine_scatter" in str(jax.make_jaxpr(kernel)(results, weights))
    if sys.argv[1] == "random":  # its derivative is that of the sums of each device and then of all
        def loss(run):
            return jax.jit(jax.value_and_grad(lambda *given: (run(*given) ** 2).sum(), (0, 1)))(results, weights)
        (value, gradients), (plain_value, plain_gradients) = loss(kernel), loss(sums("xla"))
        np.testing.assert_allclose(value, (expected**2).sum(), rtol=1e-5)
        for ours, plain in zip(gradients, plain_gradients, strict=True):
            np.testing.assert_allclose(ours, plain, atol=1e-4)
    else:
        np.testing.assert_allclose(jax.jit(kernel)(results, weights), expected, atol=1e-5)
        assert not races_found()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("routing", "devices"),
    [
        ("all tokens to one", 2),
        pytest.param("none to most", 4, marks=pytest.mark.slow),
        ("random", 2),
    ],
)
def test_sums_that_travel_while_others_are_added_up_are_those_of_float64(
    routing: str, devices: int, tmp_path: Path
) -> None:
    run_on_virtual_devices(SUMS, tmp_path, routing, str(devices), devices=devices)


ROWS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found
from systolic.ops.engine.backend import backend_of
from systolic.ops.moe.ring.gathering import spread_of_all_devices
from systolic.ops.moe.routing import sorted_by_expert

DEVICES, HERE, D, K = 4, 2, 128, 2
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(AxisType.Auto,))
random, tokens, experts = np.random.default_rng(0), DEVICES * 16, DEVICES * HERE
x = random.normal(size=(tokens, D)).astype("f")
ids = np.minimum(random.geometric(0.4, (tokens, K)) - 1, experts - 1).astype("i")  # most to the first device
backend = backend_of(interpret_params(detect_races=True, uninitialized_memory="nan"), "v6e", None)

def local(x):
    choices = sorted_by_expert(ids - HERE * jax.lax.axis_index("expert"), HERE, None, DEVICES)
    return spread_of_all_devices(backend, "expert", x, choices, ids.size, ids.size // DEVICES)

# JAX does not know over which axes interpret mode's callbacks vary.
layer = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False))
with jax.set_mesh(mesh):
    text = str(jax.make_jaxpr(layer)(x))
    assert "ppermute" in text and "systolic_spread" in text
    rows = np.asarray(layer(x)).reshape(DEVICES, -1, D)
    assert not races_found()
for device, ours in enumerate(rows):
    here = ((ids >= device * HERE) & (ids < (device + 1) * HERE)).reshape(-1)
    order = np.argsort(np.where(here, ids.reshape(-1), experts), kind="stable")[: here.sum()]
    np.testing.assert_array_equal(ours[: here.sum()], x[order // K])
"""


@pytest.mark.exhaustive
def test_rows_of_tokens_that_came_round_the_ring_are_in_the_order_of_experts(tmp_path: Path) -> None:
    run_on_virtual_devices(ROWS, tmp_path)
