"""The programs of layers of experts over the devices of a slice: `systolic.moe` against XLA's collectives.

XLA's program gathers all tokens on each device, multiplies the rows of the device's experts by `jax.lax.ragged_dot`,
and adds them up by a reduce-scatter of bfloat16. It has two forms: each token gathers the results of its choices, or
results are added to their tokens, which XLA does row by row. It is given the sizes of groups of the device with the
most rows, and room for no more rows, which it would have to leave for all tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from systolic.bench.cases import EXPERT
from systolic.chips import Chip
from systolic.ops.moe import moe
from systolic.ops.moe.routing import typical_counts
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.op_programs import RacedPrograms, Shardings
from systolic.schedule.sizes import padded

# XLA cuts the rows of `ragged_dot` into tiles that divide them: few rows if there is only a multiple of 8.
_ROW_MULTIPLE = 512
Sums = Literal["gathered", "scattered"]


def raced(spec: MoeSpec, chip: Chip, implementation: Any = None) -> RacedPrograms:
    """Return both programs. Arguments are x, the router's logits, gate, up, down, and XLA's sizes of groups."""
    experts, k, n = spec.experts, spec.k, spec.n
    shapes = ((spec.m, k), (spec.m, experts), *((experts, *shape) for shape in ((k, n), (k, n), (n, k))))
    dtypes = (spec.dtype, "float32", *[spec.dtype] * 3)
    sizes = typical_counts(spec.m, spec.top_k, experts // spec.devices, spec.devices).sum(0, dtype=np.int32)
    cut, replicated = PartitionSpec(EXPERT), PartitionSpec()

    def form(sums: Sums) -> Callable[..., Array]:
        return functools.partial(over_devices, functools.partial(plain, spec.top_k, int(sizes.sum()), sums))

    return RacedPrograms(
        spec=spec,
        arguments=(
            *(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)),
            sizes,
        ),
        ours=functools.partial(over_devices, functools.partial(_ours, spec.top_k, implementation, chip)),
        xla=form("gathered"),
        xla_forms={"rows added to tokens": form("scattered")},
        shardings=Shardings(arguments=(*[cut] * len(shapes), replicated), result=cut),
    )


def over_devices(layer: Callable[..., Array], *arguments: Array) -> Array:
    """Compute a layer on the devices of the mesh that is set; the first axis of all but the last argument is cut."""
    cuts = (*[PartitionSpec(EXPERT)] * (len(arguments) - 1), PartitionSpec())
    return jax.shard_map(layer, in_specs=cuts, out_specs=PartitionSpec(EXPERT), check_vma=False)(*arguments)


def _ours(top_k: int, implementation: Any, chip: Chip, *arguments: Array) -> Array:
    *arrays, _ = arguments
    return moe(*arrays, top_k=top_k, axis_name=EXPERT, implementation=implementation, chip=chip)


def plain(
    top_k: int, used_rows: int, sums: Sums, x: Array, logits: Array, gate: Array, up: Array, down: Array, sizes: Array
) -> Array:
    """Return the sums of a device's tokens in plain JAX, from its parts of the arrays and the sizes of its groups."""
    here, rows = gate.shape[0], padded(used_rows, _ROW_MULTIPLE)
    weights, ids = lax.top_k(jax.nn.softmax(logits), top_k)
    weights /= weights.sum(1, keepdims=True)
    tokens, weights, ids = (lax.all_gather(part, EXPERT, tiled=True) for part in (x, weights, ids))
    ids = ids.reshape(-1) - lax.axis_index(EXPERT) * here
    key = jnp.where((ids >= 0) & (ids < here), ids, here)
    order = jnp.argsort(key)
    token = order[:rows] // top_k
    product = functools.partial(lax.ragged_dot, group_sizes=sizes, preferred_element_type=x.dtype)
    inputs = tokens[token]
    results = product(jax.nn.silu(product(inputs, gate)) * product(inputs, up), down)
    if sums == "gathered":
        place = jnp.argsort(order)
        chosen = jnp.where((key < here)[:, None], results[jnp.minimum(place, rows - 1)], 0)
        total = (chosen.reshape(*weights.shape, -1).astype(jnp.float32) * weights[..., None]).sum(1)
    else:
        weighted = results.astype(jnp.float32) * weights.reshape(-1)[order[:rows], None]
        weighted = jnp.where((key[order[:rows]] < here)[:, None], weighted, 0)
        total = jnp.zeros((tokens.shape[0], x.shape[1]), jnp.float32).at[token].add(weighted)
    return lax.psum_scatter(total.astype(x.dtype), EXPERT, tiled=True)
