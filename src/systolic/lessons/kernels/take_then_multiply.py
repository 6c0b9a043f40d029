"""Fused gather · Step 1: XLA gathers the rows, then a product.

    out[r] = x[ids[r]] @ w                                  x [tokens, k], w [k, n]

A layer of experts begins with it: `ids` has the tokens of an expert, or of all experts in their order. XLA's gather
writes x[ids] to HBM, and the product reads it again. Each row that several ids name is written once for each.

Use `fetch_then_multiply` to leave out the array between the two.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def take_then_multiply(x: Array, ids: Array, w: Array) -> Array:
    """Return rows of x times w, in the dtype of w."""
    rows = jnp.take(x, ids, axis=0, mode="clip").astype(w.dtype)
    return jnp.dot(rows, w, preferred_element_type=jnp.float32).astype(w.dtype)
