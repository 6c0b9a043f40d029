"""`moe` refuses wrong arguments by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.spec import SpecError

X, LOGITS, WIDE, DOWN = jnp.ones((4, 8)), jnp.ones((4, 3)), jnp.ones((3, 8, 16)), jnp.ones((3, 16, 8))
IDS, WEIGHTS = np.zeros((4, 2), np.int32), jnp.ones((4, 2))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"x": jnp.ones(8)}, r"x of shape \[8\]"),
        ({"w_gate": jnp.ones((3, 9, 16))}, r"w_gate has to be \[experts, 8, f\]"),
        ({"w_up": WIDE[:2]}, "w_up has to be"),
        ({"w_down": WIDE}, "w_down"),
        ({"routing": LOGITS[:, :2]}, r"router_logits of shape \[4, 2\]"),
        ({"top_k": None}, "top_k=None"),
        ({"top_k": 4}, "top_k=4.*from 1 to 3"),
        ({"capacity": 0}, "capacity=0"),
        ({"axis_name": "expert"}, "not an axis of the mesh"),
        ({"form": "all-to-all"}, "form='all-to-all' is of a layer over several devices"),
        ({"form": "all to all", "axis_name": "expert"}, "form='all to all'.*all-to-all"),
        ({"routing": (IDS,)}, "1 arrays of routing"),
        ({"routing": (IDS, WEIGHTS)}, "but top_k=1; leave it out"),
        ({"routing": (IDS + 3, WEIGHTS), "top_k": None}, "from 3 to 3; use numbers from 0 to 2"),
        ({"routing": (IDS - 2, WEIGHTS), "top_k": None}, "from -2 to -2"),
        ({"routing": (WEIGHTS, WEIGHTS), "top_k": None}, "use integers and floats"),
        ({"routing": (IDS[:3], WEIGHTS), "top_k": None}, r"both have to be \[4, 'k'\]"),
    ],
)
def test_what_does_not_match_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    call: dict[str, Any] = {"x": X, "routing": LOGITS, "w_gate": WIDE, "w_up": WIDE, "w_down": DOWN, "top_k": 1}
    with pytest.raises(SpecError, match=named):
        systolic.moe(**(call | changes))


def test_a_gated_product_in_jit_can_be_differentiated_outside() -> None:
    """The sizes of groups are computed in the function, as a router's are."""

    @jax.jit
    def layer(x: jax.Array) -> jax.Array:
        sizes = jnp.full(3, 4, jnp.int32) * (x.shape[0] // 4) // 3
        return systolic.grouped_matmul(x, WIDE, sizes + x[0, :1].astype(jnp.int32) * 0, up=WIDE, activation="silu")

    assert jax.grad(lambda x: layer(x).sum())(X).shape == X.shape


@pytest.mark.exhaustive
def test_known_experts_may_be_closed_over_in_jit() -> None:
    """NumPy's functions trace an array of JAX there, although its values are known."""
    routing = jnp.asarray(IDS), WEIGHTS
    layer = jax.jit(lambda x: systolic.moe(x, routing, WIDE, WIDE, DOWN))
    np.testing.assert_allclose(layer(X), systolic.moe(X, routing, WIDE, WIDE, DOWN), rtol=1e-6)
    past_the_last = jnp.asarray(IDS + 3), WEIGHTS
    with pytest.raises(SpecError, match="from 3 to 3"):
        jax.jit(lambda x: systolic.moe(x, past_the_last, WIDE, WIDE, DOWN)).lower(X)
