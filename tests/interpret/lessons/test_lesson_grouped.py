"""Grouped products by scalar prefetch in TPU interpret mode, against float64."""

import grouped_reference as reference
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.lessons.kernels.grouped import ROWS, aligned_grouped, grouped, visits


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("multiply", "sizes"),
    [
        (aligned_grouped, [2 * ROWS, 0, ROWS]),
        (grouped, [2 * ROWS, 0, ROWS]),
        (grouped, [0, 0, 3 * ROWS]),
        (grouped, [100, 200, 1, 0, 211, 256, 0]),
        (grouped, [1, 1, 1, 765]),
    ],
)
def test_right(multiply, sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    x = reference.small_integers(random, (sum(sizes), 128), "bfloat16")
    w = reference.small_integers(random, (len(sizes), 128, 512), "bfloat16")
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        out = multiply(jnp.asarray(sizes, jnp.int32), jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_array_equal(np.asarray(out), reference.product(x, w, sizes).astype(x.dtype))


def test_visits() -> None:
    tile, group, starts = visits(jnp.array([ROWS - 1, 0, 2, 2 * ROWS - 1]), 3 * ROWS)
    assert starts.tolist() == [0, ROWS - 1, ROWS - 1, ROWS + 1, 3 * ROWS]
    assert list(zip(tile.tolist(), group.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 2), (1, 3), (2, 3), (2, 3)]
