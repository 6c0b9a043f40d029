"""The kernel that puts rows of tokens in the order of experts, in TPU interpret mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systolic.ops.engine.backend import backend_of
from systolic.ops.moe import schedule
from systolic.ops.moe.permuting import spread
from systolic.ops.moe.routing import sorted_by_expert
from systolic.ops.moe.schedule import SpreadSchedule, spread_schedule
from systolic.schedule import IllegalTilesError

INTERPRETED = backend_of("interpret", "v6e", None)
RANDOM = np.random.default_rng(0)


# 70 tokens with eight experts each take two chunks of rows; 1,152 columns are a register of eight tiles and one tile.
@pytest.mark.exhaustive
@pytest.mark.parametrize("columns", [None, 128])
@pytest.mark.parametrize(
    ("tokens", "top_k", "d", "dtype"),
    [(70, 8, 256, "bfloat16"), (70, 2, 1152, "bfloat16"), (37, 1, 384, "float32"), (3, 5, 100, "bfloat16")],
)
def test_rows_are_those_of_their_tokens(
    tokens: int, top_k: int, d: int, dtype: str, columns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are copied bit for bit, NaN too, in one slab of columns and in several."""
    monkeypatch.setattr(schedule, "_SPREAD_ROWS", 64)  # of a block, for interpret mode copies row by row
    if columns is not None:
        monkeypatch.setattr(SpreadSchedule, "of", lambda spec, _: spread_schedule(spec, columns))
    choices = sorted_by_expert(jnp.asarray(RANDOM.integers(-1, 5, (tokens, top_k)), jnp.int32), 5, None)
    x = RANDOM.normal(size=(tokens, d)).astype(np.float32)
    x[1] = np.nan
    kept = int(choices.sizes.sum())
    jax.clear_caches()
    out = np.asarray(spread(INTERPRETED, jnp.asarray(x, dtype), choices, tokens * top_k), np.float32)
    jax.clear_caches()
    expected = np.asarray(jnp.asarray(x, dtype), np.float32)[np.asarray(choices.order) // top_k]
    np.testing.assert_array_equal(out[:kept], expected[:kept])


def test_no_choice_with_an_expert_is_no_row() -> None:
    choices = sorted_by_expert(jnp.full((8, 2), -1, jnp.int32), 5, None)
    assert spread(INTERPRETED, jnp.ones((8, 128)), choices, 16).shape == (16, 128)


def test_tokens_above_vmem_are_left_to_xla() -> None:
    choices = sorted_by_expert(jnp.zeros((2, 1), jnp.int32), 5, None)
    choices = choices._replace(order=jax.ShapeDtypeStruct((10**7,), jnp.int32))
    x = jax.ShapeDtypeStruct((10**7, 128), jnp.bfloat16)
    with pytest.raises(IllegalTilesError, match="VMEM"):
        jax.eval_shape(lambda x, order: spread(INTERPRETED, x, choices._replace(order=order), 16), x, choices.order)
    anywhere = backend_of(None, "v6e", None)
    out = jax.eval_shape(lambda x, order: spread(anywhere, x, choices._replace(order=order), 16), x, choices.order)
    assert out.shape == (16, 128)
