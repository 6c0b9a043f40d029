"""The example's Pallas kernels for experts compute what plain JAX computes, with their gradients."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from optional_packages import NEEDS_TOKAMAX
from transformer.experts import product_by_expert, routed
from transformer.models import configured
from transformer.sharding import Sharding
from transformer.tokamax_kernels import for_another_machine

TOKENS = 128
QWEN_ROWS = 16 * 4096 * 8  # of a device in its published step


@pytest.mark.exhaustive
@pytest.mark.parametrize("grouped", ["megablox", pytest.param("tokamax", marks=NEEDS_TOKAMAX)])
def test_a_kernel_multiplies_groups_as_plain_jax_does(grouped: str) -> None:
    plain, kernel = (
        configured("tiny-moe", grouped=name, width=256, expert_width=128, expert_tiles=(128, 128, 128))
        for name in ("plain", grouped)
    )
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def drawn(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[-2])

    weights = {"router": drawn(plain.width, plain.experts)}
    weights |= {f"expert_{name}": drawn(plain.experts, 256, 128) for name in ("gate", "up")}
    weights |= {"expert_down": drawn(plain.experts, 128, 256)}
    x = jax.random.normal(next(keys), (1, TOKENS, plain.width)).astype(jnp.bfloat16)

    def results(config):
        def loss(weights, x):
            return jnp.sum(jnp.sin(routed(x, weights, config, Sharding(None)).astype(jnp.float32)))

        return jax.tree.leaves(jax.value_and_grad(loss, (0, 1))(weights, x))

    references = results(plain)
    # tokamax asks for the chip, to choose its tiles.
    chip = AbstractMesh((), (), abstract_device=AbstractDevice("TPU v6 lite", 1, platform="tpu"))
    # Interpret mode has side effects, with which JAX drops no forward function.
    define = jax.custom_vjp.defvjp
    kept = mock.patch.object(jax.custom_vjp, "defvjp", lambda self, fwd, bwd, **_: define(self, fwd, bwd))
    with pltpu.force_tpu_interpret_mode(), for_another_machine(kernel), use_abstract_mesh(chip), kept:
        values = results(kernel)
    for value, reference in zip(values, references, strict=True):
        reference = np.asarray(reference, np.float32)
        # Hidden values and results are rounded to bfloat16.
        assert np.linalg.norm(np.asarray(value, np.float32) - reference) <= 2**-6 * np.linalg.norm(reference)


@pytest.mark.exhaustive
@NEEDS_TOKAMAX
def test_products_of_a_published_step_have_the_tiles_that_tokamax_has_tuned(caplog: pytest.LogCaptureFixture) -> None:
    config = configured("qwen3-235b-a22b", grouped="tokamax")
    sizes = jnp.full(config.experts, QWEN_ROWS // config.experts, jnp.int32)

    def both_ways(rows, matrices):
        product, backward = jax.vjp(
            lambda rows, matrices: product_by_expert(rows, matrices, sizes, config), rows, matrices
        )
        return backward(product)

    chip = AbstractMesh((), (), abstract_device=AbstractDevice("TPU7x", 1, platform="tpu"))
    with for_another_machine(config), use_abstract_mesh(chip):
        for inner, outer in ((config.width, config.expert_width), (config.expert_width, config.width)):
            shapes = (QWEN_ROWS, inner), (config.experts, inner, outer)
            jax.eval_shape(both_ways, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    assert "Autotuning cache miss" not in caplog.text
