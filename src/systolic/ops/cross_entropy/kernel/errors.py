"""Errors of logits, the derivative of a loss in them: elementwise work that takes place beside products.

errors = dlse · exp(logits - lse) + dpicked · (column = label) + dtotal
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.cross_entropy.kernel.gradient_refs import Scratch
from systolic.ops.cross_entropy.kernel.logits import by_rows, soft_capped
from systolic.schedule import LANES

# Columns of `rows`: a row's label, log-sum-exp, and the cotangents of log-sum-exp, label's logit and sum of logits.
LABEL, LSE, DLSE, DPICKED, DTOTAL = range(5)


def spread_rows(rows_vmem: Any, scratch: Scratch) -> None:
    """Write the numbers of the rows across all lanes, once for a tile: each use would take 4 cycles a register."""

    def spread(rows: Any) -> None:
        values = [jnp.broadcast_to(rows_vmem[rows, at : at + 1], (rows.size, LANES)) for at in range(DTOTAL + 1)]
        scratch.labels_vmem[rows, :] = values[LABEL].astype(jnp.int32)
        for at in range(LSE, scratch.spread_vmem.shape[0] + LSE):
            scratch.spread_vmem[at - LSE, rows, :] = values[at]

    by_rows(rows_vmem.shape[0], spread)


def store_errors(
    soft_cap: float | None,
    rows: Any,
    column: Any,
    columns_left: Any,
    logits_vmem: Any,
    scratch: Scratch,
    store: Callable[[int, Array], None],
) -> Array:
    """Store the errors of some rows; return numbers above zero that depend on all of them: [rows, 128].

    Args:
      rows: a slice of the tile's rows.
      column: the vocabulary's at which the logits begin.
      columns_left: the number of logits in front of the padding, a number or [rows, 1]; None if there is no padding.
      logits_vmem: [rows, columns].
      scratch: has the rows' numbers, from `spread_rows`.
      store: takes the first of 128 columns of errors, and these errors.
    """
    label = scratch.labels_vmem[rows, :] - column
    lane = lax.broadcasted_iota(jnp.int32, label.shape, 1)
    lse, dlse, dpicked, *dtotal = (scratch.spread_vmem[at, rows, :] for at in range(scratch.spread_vmem.shape[0]))
    seen = jnp.zeros(lane.shape, jnp.float32)
    for group in range(0, logits_vmem.shape[1], LANES):
        logits = soft_capped(logits_vmem[:, group : group + LANES].astype(jnp.float32), soft_cap)
        probabilities = jnp.exp(logits - lse)
        errors = dlse * probabilities + jnp.where(lane + group == label, dpicked, 0.0)
        if dtotal:
            errors = errors + dtotal[0]
        if soft_cap is not None:
            errors = errors * (1 - jnp.square(logits * (1 / soft_cap)))
        if columns_left is not None:
            errors = jnp.where(lane < columns_left - group, errors, 0.0)
        store(group, errors)
        seen = jnp.maximum(seen, probabilities)
    return seen
