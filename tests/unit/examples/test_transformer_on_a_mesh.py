"""The loss of examples/transformer over a mesh that cuts sequences, features and the vocabulary, against one device."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import functools, sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
from jax.sharding import Mesh
from transformer.models import configured
from transformer.sharding import Sharding
from transformer.step import mean_loss

config = configured("tiny", width=16, vocabulary=48)
random = np.random.default_rng(0)
x, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 6, 16), (16, 48)))
targets = random.integers(0, 48, (4, 6))
places = (("batch", "sequence", "residual"), ("batch", "sequence"), ("width", "vocabulary"))

def step(mesh, loss):
    sharding = Sharding(mesh)
    fn = functools.partial(mean_loss, config=configured(config, loss=loss), sharding=sharding)
    given = x, targets, weight
    if mesh is not None:
        given = [jax.device_put(array, sharding.of(*names)) for array, names in zip(given, places, strict=True)]
    return jax.tree.leaves(jax.jit(jax.value_and_grad(fn, argnums=(0, 2)))(*given))

alone = step(None, "plain")
for axes in ({"fsdp": 2, "tensor": 2}, {"data": 2, "fsdp": 2}):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(*axes.values()), tuple(axes))
    for value, wanted in zip(step(mesh, "systolic"), alone, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5 * float(abs(wanted).max()))
"""


@pytest.mark.exhaustive
def test_loss_and_gradients(tmp_path: Path) -> None:
    examples = Path(__file__).parents[3] / "examples"
    run_on_virtual_devices(SCRIPT, tmp_path, str(examples))
