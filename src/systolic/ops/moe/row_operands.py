"""Operands of the kernels that find tokens and sums of tokens in VMEM: where the rows of experts are there."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.blocks import ROW_TILE
from systolic.ops.moe.routing import Sorted


def in_whole_registers(choices: Sorted) -> Sorted:
    """Return choices whose experts have whole registers of rows: the last rows of an expert are of no choice."""
    experts = choices.counts.shape[1]
    padding = -choices.sizes % ROW_TILE
    before = jnp.cumsum(jnp.append(padding, 0)) - jnp.append(padding, 0)
    is_expert = choices.ids[:, None] == jnp.arange(experts + 1)
    place = choices.place + jnp.where(is_expert, before, 0).sum(1)
    return choices._replace(place=place, counts=jnp.concatenate([choices.counts, padding[None]]))


def table_of_experts(sizes: Array) -> Array:
    """Return for each expert its first row among sorted choices, its first row in whole registers, and its rows."""
    rows = sizes + -sizes % ROW_TILE
    return jnp.stack([jnp.cumsum(sizes) - sizes, jnp.cumsum(rows) - rows, sizes])


def sum_operands(weights: Array, choices: Sorted, top_k: int, registers: int, room: int) -> tuple[Array, Array]:
    """Return where the sum of the token of each sorted row begins, and the rows' weights.

    Args:
      weights: of choices in the order of experts.
      registers: of a row of sums.
      room: rows after the last, which a block may have.
    """
    tokens = choices.order // top_k
    words = tokens // SUBLANES * (registers * SUBLANES) + tokens % SUBLANES
    # Rows after an expert's last are multiplied by zeros, so that no infinite weight may be theirs.
    factors = jnp.where(jnp.arange(weights.size) < choices.sizes.sum(), weights, 0)
    return jnp.pad(words, (0, room)), jnp.pad(factors, (0, room))
