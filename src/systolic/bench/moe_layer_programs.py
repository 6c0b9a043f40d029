"""The programs of layers of experts: `systolic.moe` against `jax.lax.ragged_dot` with XLA's sorts and gathers.

XLA's program is given the sizes of groups, which it would have to count: a simulation does not know what a router
sends.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.moe import moe
from systolic.ops.moe.routing import typical_counts
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.op_programs import RacedPrograms


def raced(spec: MoeSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Return both programs. Arguments are x, the router's logits, gate, up and down, and XLA's sizes of groups."""
    experts, k, n = spec.experts, spec.k, spec.n
    shapes = ((spec.m, k), *((experts, *shape) for shape in ((k, n), (k, n), (n, k))))
    x, *weights = (jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype)) for shape in shapes)
    logits = jax.ShapeDtypeStruct((spec.m, experts), jnp.float32)
    sizes = typical_counts(spec.m, spec.top_k, experts).sum(0, dtype=np.int32)
    return RacedPrograms(
        spec=spec,
        arguments=(x, logits, *weights, sizes),
        ours=functools.partial(_ours, spec.top_k, implementation, chip),
        xla=functools.partial(plain, spec.top_k),
    )


def _ours(top_k: int, implementation: Any, chip: Chip, *given: Array) -> Array:
    *arrays, _ = given
    return moe(*arrays, top_k=top_k, implementation=implementation, chip=chip)


def plain(top_k: int, x: Array, logits: Array, gate: Array, up: Array, down: Array, sizes: Array) -> Array:
    weights, experts = lax.top_k(jax.nn.softmax(logits), top_k)
    weights /= weights.sum(1, keepdims=True)
    order = jnp.argsort(experts.reshape(-1))
    product = functools.partial(lax.ragged_dot, group_sizes=sizes, preferred_element_type=x.dtype)
    rows = x[order // top_k]
    hidden = jax.nn.silu(product(rows, gate)) * product(rows, up)
    results = product(hidden, down)[jnp.argsort(order)].reshape(*weights.shape, -1)
    return (results.astype(jnp.float32) * weights[..., None]).sum(1).astype(x.dtype)
