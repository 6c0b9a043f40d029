"""Experts on four virtual devices beside float64: sums travel round a ring in the kernel that adds up experts' rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np, systolic
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found

DEVICES, TOKENS, D, F, EXPERTS, K = int(sys.argv[2]), 256, 128, 128, 8, 2
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(AxisType.Auto,))
random = np.random.default_rng(0)
tokens = DEVICES * TOKENS
x = random.normal(size=(tokens, D)).astype("f")
gate, up = (random.normal(size=(2, EXPERTS, D, F)) / 11).astype("f")
down = (random.normal(size=(EXPERTS, F, D)) / 11).astype("f")
ROUTINGS = {
    "random": random.integers(0, EXPERTS, (tokens, K)),
    "all tokens to one": np.full((tokens, K), 5),
    "none to most": random.choice([-1, 1], (tokens, K)),
}
ids = ROUTINGS[sys.argv[1]]
weights = random.random(ids.shape).astype("f")

def expected():
    rows = x.astype(np.float64)
    out = np.zeros(rows.shape)
    for expert in range(EXPERTS):
        hidden = rows @ gate[expert]
        result = (hidden / (1 + np.exp(-hidden)) * (rows @ up[expert])) @ down[expert]
        out += ((ids == expert) * weights).sum(1, keepdims=True) * result
    return out

def layer(implementation):
    def local(x, ids, weights, *matrices):
        options = {"axis_name": "expert", "implementation": implementation, "precision": "highest", "chip": "v6e"}
        return systolic.moe(x, (ids, weights), *matrices, **options)
    # JAX does not know over which axes interpret mode's callbacks vary.
    return jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False)

params = interpret_params(detect_races=True, uninitialized_memory="nan")
given = x, ids.astype("i"), weights, gate, up, down
with jax.set_mesh(mesh):
    text = str(jax.make_jaxpr(layer(params))(*given))
    assert "systolic_combine_scatter" in text
    np.testing.assert_allclose(jax.jit(layer(params))(*given), expected(), atol=2e-5)
    assert not races_found()
    if sys.argv[1] == "random":
        # Its derivative is that of the sums of a device and then of all.
        loss = lambda run: jax.jit(jax.grad(lambda *arrays: (run(arrays[0], given[1], *arrays[1:]) ** 2).sum(), range(5)))
        floats = x, weights, gate, up, down
        for ours, plain in zip(loss(layer(params))(*floats), loss(layer("xla"))(*floats), strict=True):
            np.testing.assert_allclose(ours, plain, atol=3e-4)
"""


@pytest.mark.parametrize(
    ("routing", "devices"),
    [
        ("random", 2),
        ("all tokens to one", 4),
        pytest.param("none to most", 4, marks=pytest.mark.exhaustive),
        pytest.param("random", 4, marks=pytest.mark.exhaustive),
    ],
)
def test_sums_that_travel_while_others_are_added_up_are_those_of_float64(
    routing: str, devices: int, tmp_path: Path
) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, routing, str(devices), devices=devices)
