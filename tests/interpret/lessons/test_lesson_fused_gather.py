"""Rows that are fetched by their numbers in TPU interpret mode, against float64; a late wait is a race."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import races_found
from systolic.lessons.fused_gather import PARTS
from systolic.lessons.kernels.fetch_while_multiplying import BLOCK
from systolic.lessons.lesson import Part

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


@pytest.mark.exhaustive  # race detection compares each copy with all others
@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_right_or_a_race(part: Part) -> None:
    random = np.random.default_rng(0)
    x, w = random.integers(-4, 5, (BLOCK, 128)).astype(np.float32), random.integers(-4, 5, (128, 128))
    # Rows may be named several times, or not at all.
    ids = random.integers(0, BLOCK // 2, 2 * BLOCK).astype(np.int32)
    with pltpu.force_tpu_interpret_mode(CAREFUL):
        out = part.fn(jnp.asarray(x), jnp.asarray(ids), jnp.asarray(w, jnp.bfloat16))
    if part.finds:
        assert races_found()
        return
    expected = (x.astype(np.float64)[ids] @ w).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(jnp.asarray(expected, jnp.bfloat16)))
    assert not races_found()
