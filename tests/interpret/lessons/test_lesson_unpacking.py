"""The lesson on quantized weights in TPU interpret mode, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.lessons.kernels.unpacking import BLOCK, as_it_is, multiply, scaled_sums, scaled_weights, unpacked
from systolic.lessons.unpacking import PARTS, xla

M, K, N = 16, 256, 256


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("product", "dtype", "blocks"),
    [
        (as_it_is, "bfloat16", 1),
        (as_it_is, "float8_e5m2", 1),
        (unpacked, "int8", 1),
        (unpacked, "int4", 1),
        (scaled_weights, "int4", K // BLOCK),
        (scaled_sums, "int4", K // BLOCK),
    ],
)
def test_right(product, dtype: str, blocks: int) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, (M, K)).astype(jnp.bfloat16)
    w = random.integers(-8, 8, (K, N)).astype(dtype)
    scale = 2.0 ** random.integers(-2, 3, (blocks, 1, N)).astype(np.float32)  # powers of two: nothing is rounded
    wanted = x.astype(np.float64) @ (w.astype(np.float64) * np.repeat(scale[:, 0], K // blocks, axis=0))
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        out = multiply(jnp.asarray(x), jnp.asarray(w), jnp.asarray(scale), product=product)
    np.testing.assert_array_equal(np.asarray(out), wanted.astype(jnp.bfloat16))
    np.testing.assert_array_equal(
        np.asarray(xla(jnp.asarray(x), jnp.asarray(w), jnp.asarray(scale))), wanted.astype(jnp.bfloat16)
    )


def test_scales_reach_the_kernel_of_systolic_uncopied() -> None:
    [part] = [part for part in PARTS if part.name == "int4 in blocks, systolic"]
    scale = part.args[2]
    equations = jax.make_jaxpr(part.fn)(*part.args).eqns
    assert [equation for equation in equations if equation.outvars[0].aval.shape == scale.shape] == []
    assert scale.shape == (part.args[1].shape[0] // BLOCK, part.args[1].shape[1])
