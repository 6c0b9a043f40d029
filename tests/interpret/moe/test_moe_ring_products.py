"""Kernels on a ring of devices that multiply by experts, floats and codes, beside float64: alone, and as a layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

# Matrices of the scripts below, by the name of their form.
IN_FORM = """
import jax.numpy as jnp, numpy as np
import systolic

FORMS = {
    "int8": {"dtype": "int8"},
    "e5m2": {"dtype": "e5m2"},
    "int4, 128": {"dtype": "int4", "block": 128},
    "e4m3, 128 × 128": {"dtype": "e4m3", "axis": (-2, -1), "block": (128, 128)},
    "fp4, 32": {"dtype": "fp4", "block": 32},
}

def in_form(name, matrices):
    floats = jnp.asarray(matrices, jnp.bfloat16)
    return floats if name == "bfloat16" else systolic.quantize(floats, **FORMS[name])

def in_float64(array):
    if not isinstance(array, systolic.Quantized):
        return np.asarray(array.astype("float32"), np.float64)
    scales = np.asarray(array.scales, np.float64)
    for axis, block in enumerate(array.blocks):
        scales = scales.repeat(block, axis)
    return np.asarray(array.values.astype("float32"), np.float64) * scales
"""

HIDDEN = """
import sys
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found
from systolic.ops.engine.backend import backend_of
from systolic.ops.moe import sum_tiles
from systolic.ops.moe.experts import Experts, stored
from systolic.ops.moe.ring import products
from systolic.ops.moe.ring.hidden import RingHidden
from systolic.ops.moe.routing import sorted_by_expert

DEVICES, HERE, D, F, K = int(sys.argv[1]), 3, 256, 128, 2
assert products.ROW_COLUMNS == sum_tiles.ROW_COLUMNS
products.ROW_COLUMNS = sum_tiles.ROW_COLUMNS = int(sys.argv[2])
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(AxisType.Auto,))
random, tokens, experts = np.random.default_rng(0), DEVICES * 32, DEVICES * HERE
x = jnp.asarray(random.normal(size=(tokens, D)), jnp.bfloat16).at[5].set(jnp.nan)
gate, up = (in_form(sys.argv[3], random.normal(size=(experts, D, F)) / 16) for _ in range(2))
ids = np.minimum(random.geometric(0.3, (tokens, K)) - 1, experts - 1).astype("i")  # most to the first device
ids[::7, 0] = -1
backend = backend_of(interpret_params(detect_races=True, uninitialized_memory="nan"), "v6e", None)

def local(x, gate, up):
    choices = sorted_by_expert(ids - HERE * jax.lax.axis_index("expert"), HERE, None, DEVICES)
    experts = Experts(gate, up, jnp.zeros((HERE, F, D), x.dtype), None, None, None)
    kernel = RingHidden.of(backend, "expert", x, ids.size, experts)
    kernel = replace(kernel, schedule=replace(kernel.schedule, panel=48))  # several panels of rows
    weights, _ = stored(kernel.chip, experts, x)
    hidden, choices, _ = kernel.hidden(x, choices, weights, "silu", kernel.neighbors(x), None)
    return hidden.astype("float32")[None], choices.place[None]

# JAX does not know over which axes interpret mode's callbacks vary.
layer = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False))
with jax.set_mesh(mesh):
    hidden, places = map(np.asarray, layer(x, gate, up))
assert not races_found()
x, gate, up = map(in_float64, (x, gate, up))
for token, choice in np.argwhere(ids >= 0):
    expert = ids[token, choice]
    product, device = x[token] @ gate[expert], expert // HERE
    expected = product / (1 + np.exp(-product)) * (x[token] @ up[expert])
    ours = hidden[device, places[device, token * K + choice]]
    np.testing.assert_allclose(ours, expected, rtol=2**-7, atol=1e-4)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "slab", "form"),
    [
        (2, 128, "bfloat16"),
        (4, 128, "bfloat16"),
        (2, 128, "int8"),  # a scale for all slabs
        (2, 256, "e4m3, 128 × 128"),  # two for each slab
        pytest.param(4, 128, "e4m3, 128 × 128", marks=pytest.mark.slow),
        pytest.param(2, 256, "int4, 128", marks=pytest.mark.slow),
    ],
)
def test_products_that_begin_while_tokens_travel_are_those_of_float64(
    devices: int, slab: int, form: str, tmp_path: Path
) -> None:
    run_on_virtual_devices(IN_FORM + HIDDEN, tmp_path, str(devices), str(slab), form, devices=devices)


SENT = """
import sys
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found
from systolic.ops.engine.backend import backend_of
from systolic.ops.moe import sum_tiles
from systolic.ops.moe.experts import Experts, stored
from systolic.ops.moe.ring import products
from systolic.ops.moe.ring.hidden import RingHidden
from systolic.ops.moe.row_operands import in_whole_registers
from systolic.ops.moe.routing import sorted_with_values

DEVICES, HERE, D, F, K = int(sys.argv[1]), 12, 256, int(sys.argv[4]), 2
REPEATS = sys.argv[2] == "repeats"
assert products.ROW_COLUMNS == sum_tiles.ROW_COLUMNS
products.ROW_COLUMNS = sum_tiles.ROW_COLUMNS = 128  # two tiles of columns
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(AxisType.Auto,))
random, tokens, experts = np.random.default_rng(0), DEVICES * 256, DEVICES * HERE
ids = np.minimum(random.geometric(0.1, (tokens, K)) - 1, experts - 1).astype("i")  # some twice by one token
if not REPEATS:
    ids[:, 1] = np.where(ids[:, 0] == ids[:, 1], (ids[:, 0] + 1) % experts, ids[:, 1])
ids[::7, 0] = -1
ids[np.arange(tokens) % 4 > 0] = -1  # rows are added one by one, which takes interpret mode long
weights = random.random(ids.shape).astype("f")
down = in_form(sys.argv[3], random.normal(size=(experts, F, D)) / 11)
x = jnp.zeros((tokens, D), jnp.bfloat16)
rows = jnp.asarray(random.normal(size=(ids.size, F)), jnp.bfloat16)  # of each choice
backend = backend_of(interpret_params(detect_races=True, uninitialized_memory="nan"), "v6e", None)

def local(x, down):
    own_ids = ids - HERE * jax.lax.axis_index("expert")
    choices, (factors,) = sorted_with_values(own_ids, HERE, None, DEVICES, jnp.asarray(weights))
    gate = jnp.zeros((HERE, D, F), x.dtype)
    experts = Experts(gate, gate, down, None, None, None)
    kernel = RingHidden.of(backend, "expert", x, ids.size, experts)
    _, stored_down = stored(kernel.chip, experts, x)
    padded = in_whole_registers(choices)
    places = jnp.where(choices.ids < HERE, padded.place, kernel.spec.rows)
    hidden = jnp.full((kernel.spec.rows, F), jnp.nan, x.dtype).at[places].set(rows, mode="drop")
    return kernel.sums(hidden, stored_down, kernel.sum_operands(factors, choices), repeats=REPEATS)

# JAX does not know over which axes interpret mode's callbacks vary.
layer = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False))
with jax.set_mesh(mesh):
    ours = np.asarray(layer(x, down).astype("float32"))
assert not races_found()
rows, down = map(in_float64, (rows, down))
expected = np.zeros((tokens, D))
for choice, expert in enumerate(ids.reshape(-1)):
    if expert >= 0:
        expected[choice // K] += weights.reshape(-1)[choice] * (rows[choice] @ down[expert])
# The result is rounded, and each of two sums on its way.
np.testing.assert_allclose(ours, expected, atol=3 * 2**-9 * np.abs(expected).max())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "choices", "form", "features"),
    [
        (2, "repeats", "bfloat16", 128),
        (2, "distinct", "bfloat16", 128),
        pytest.param(4, "distinct", "bfloat16", 128, marks=pytest.mark.slow),
        pytest.param(2, "distinct", "int8", 128, marks=pytest.mark.slow),
        (2, "distinct", "e4m3, 128 × 128", 256),
        pytest.param(2, "repeats", "int4, 128", 256, marks=pytest.mark.slow),
    ],
)
def test_sums_sent_while_the_next_columns_are_multiplied_are_those_of_float64(
    devices: int, choices: str, form: str, features: int, tmp_path: Path
) -> None:
    run_on_virtual_devices(IN_FORM + SENT, tmp_path, str(devices), choices, form, str(features), devices=devices)


LAYER = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params
from systolic.ops.moe import sum_tiles
from systolic.ops.moe.ring import products

DEVICES, HERE, D, F, K = int(sys.argv[1]), 4, 256, 128, 2
assert products.ROW_COLUMNS == sum_tiles.ROW_COLUMNS
products.ROW_COLUMNS = sum_tiles.ROW_COLUMNS = 128  # two slabs, and two tiles of columns
mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("expert",), axis_types=(AxisType.Auto,))
random, tokens, experts = np.random.default_rng(0), DEVICES * 256, DEVICES * HERE

def normal(*shape):
    return jnp.asarray(random.normal(size=shape) / np.sqrt(shape[-2]), jnp.bfloat16)

x, logits = normal(tokens, D) * 16, jnp.asarray(random.normal(size=(tokens, experts)), jnp.float32)
forms = sys.argv[2:]  # of gate and up, and of down
shapes = (experts, D, F), (experts, D, F), (experts, F, D)
matrices = [in_form(form, normal(*shape)) for form, shape in zip((forms[0], *forms), shapes, strict=True)]

def layer(implementation):
    local = lambda *given: systolic.moe(
        *given, top_k=K, axis_name="expert", chip="v6e", implementation=implementation
    )
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False))

def loss(implementation):
    squares = lambda x, logits, matrices: layer(implementation)(x, logits, *matrices).astype("float32") ** 2
    return jax.jit(lambda *given: squares(*given).sum())

def dense(x, logits, matrices):
    gate, up, down = map(in_float64, matrices)
    x, logits = np.asarray(x.astype("float32"), np.float64), np.asarray(logits, np.float64)
    chosen = np.argsort(-logits, axis=1)[:, :K]
    shares = np.exp(np.take_along_axis(logits, chosen, 1))
    shares /= shares.sum(1, keepdims=True)
    out = np.zeros_like(x)
    for token in range(len(x)):
        for expert, share in zip(chosen[token], shares[token]):
            h = x[token] @ gate[expert]
            out[token] += share * ((h / (1 + np.exp(-h)) * (x[token] @ up[expert])) @ down[expert])
    return out

with jax.set_mesh(mesh):
    interpreted = layer(interpret_params(uninitialized_memory="nan"))
    text = str(interpreted.trace(x, logits, *matrices).jaxpr)
    assert "ring_products" in text and "scatter_products" in text
    ours = np.asarray(interpreted(x, logits, *matrices).astype("float32"))
    expected = dense(x, logits, matrices)
    np.testing.assert_allclose(ours, expected, atol=2**-6 * np.abs(expected).max())
    # Gradients are those of the kernels without travelling tokens, run by XLA.
    arguments = (0, 1, 2) if forms == ["bfloat16", "bfloat16"] else (0, 1)  # codes have no gradient
    gradients = [jax.grad(loss(how), arguments)(x, logits, matrices) for how in ("xla", interpret_params())]
    for one, other in zip(*map(jax.tree.leaves, gradients)):
        one, other = (np.asarray(array.astype("float32")) for array in (one, other))
        np.testing.assert_allclose(one, other, atol=2**-5 * np.abs(one).max())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "forms",
    [
        ("bfloat16", "bfloat16"),
        ("int8", "e4m3, 128 × 128"),
        ("e5m2", "bfloat16"),
        ("fp4, 32", "int8"),  # gate and up are dequantized
    ],
)
def test_a_layer_over_devices_is_that_of_float64_with_its_gradients(forms: tuple[str, str], tmp_path: Path) -> None:
    run_on_virtual_devices(IN_FORM + LAYER, tmp_path, "2", *forms, devices=2)
