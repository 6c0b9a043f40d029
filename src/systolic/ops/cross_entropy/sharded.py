"""Statistics of arrays whose types state their shardings, as on a mesh that `jax.make_mesh` makes.

Tokens and the vocabulary stay cut: devices combine the log-sum-exps of their columns, and one of them has a token's
label. Features, as FSDP cuts them, are gathered first.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.cross_entropy.derivative import Statistics, statistics
from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.engine.cuts import Axes, cuts_of, on_devices
from systolic.ops.engine.target import explicit_mesh

_NAMES = (("m", "k"), ("k", "n"), ("m",))


def statistics_on_mesh(loss: Loss, x: Array, w: Array, labels: Array) -> Statistics:
    """Return `statistics` of arrays that may be cut over a mesh with explicit axes."""
    operands = (x, w, labels)
    mesh = explicit_mesh(operands)
    if mesh is None:
        return statistics(loss, x, w, labels)
    cuts = {name: axes for name, axes in cuts_of(operands, _NAMES, last=("k",)).items() if name != "k"}

    def compute(x: Array, w: Array, labels: Array) -> Statistics:
        return of_columns(loss, cuts["n"], x, w, labels) if "n" in cuts else statistics(loss, x, w, labels)

    return on_devices(compute, mesh, cuts, operands, _NAMES, (("m",), ("m",), ("m",)), differentiated=True)


def of_columns(loss: Loss, axes: Axes, x: Array, w: Array, labels: Array) -> Statistics:
    """Return the statistics of all columns on devices that each have some of them, in the order of the axes."""
    columns = w.shape[1]
    local = labels - lax.axis_index(axes) * columns
    here = (labels >= 0) & (local >= 0) & (local < columns)
    lse, picked, total = statistics(loss, x, w, jnp.where(here, local, -1))
    largest = lax.pmax(lax.stop_gradient(lse), axes)
    joined = largest + jnp.log(lax.psum(jnp.exp(lse - largest), axes))
    sums: Any = lax.psum((picked, total), axes)
    return joined, *sums
