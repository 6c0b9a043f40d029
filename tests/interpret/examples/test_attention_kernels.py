"""The example's Pallas kernels for attention compute what plain JAX computes, with their gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from optional_packages import NEEDS_TOKAMAX
from transformer.attention import attend, plain_attention
from transformer.models import configured
from transformer.sharding import Sharding
from transformer.tokamax_kernels import for_another_machine

LENGTH = 256


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["flash", "splash", pytest.param("tokamax", marks=NEEDS_TOKAMAX)])
def test_a_kernel_attends_as_plain_jax_does(kernel: str) -> None:
    config = configured("tiny", attention=kernel, head_dim=128, heads=2, kv_heads=2)
    keys = jax.random.split(jax.random.key(0), 3)
    operands = [jax.random.normal(key, (1, LENGTH, 2, 128), jnp.bfloat16) for key in keys]

    def plain(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return plain_attention(query, key, value, jnp.arange(LENGTH), None).astype(jnp.float32)

    def by_kernel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return attend(query, key, value, config, Sharding(None)).astype(jnp.float32)

    def gradients(attention: Callable[..., jax.Array]) -> tuple[jax.Array, ...]:
        return jax.grad(lambda *args: jnp.sum(jnp.sin(attention(*args))), (0, 1, 2))(*operands)

    with pltpu.force_tpu_interpret_mode(), for_another_machine(config):
        results = [by_kernel(*operands), *gradients(by_kernel)]
    references = [plain(*operands), *gradients(plain)]
    for result, reference in zip(results, references, strict=True):
        scale = np.abs(np.asarray(reference, np.float32)).max()
        # Probabilities and results are rounded to bfloat16.
        np.testing.assert_allclose(
            np.asarray(result, np.float32), np.asarray(reference, np.float32), atol=2**-6 * float(scale)
        )
