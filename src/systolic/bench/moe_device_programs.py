"""The programs of layers of experts over the devices of a slice: `systolic.moe` against XLA's collectives.

XLA's program gathers all tokens on each device, multiplies the rows of the device's experts by `jax.lax.ragged_dot`,
and adds them up by a reduce-scatter of bfloat16. It has two forms: each token gathers the results of its choices, or
results are added to their tokens, which XLA does row by row. Quantized experts take the first, whose time rests on no
assumption about the places of results, and multiply in each of the forms that they have on one device. XLA's program is
given the sizes of groups of the device with the most rows, and room for no more rows, which it would have to leave for
all tokens.
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
from systolic.bench.moe_layer_programs import Form, arrays_of, experts_of, forms_of, products
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
    """Return both programs.

    Arguments are x, the router's logits, gate, up and down, their scales if they are quantized, and XLA's sizes of
    groups.
    """
    sizes = typical_counts(spec.m, spec.top_k, spec.experts // spec.devices, spec.devices).sum(0, dtype=np.int32)
    arrays, cut, replicated = arrays_of(spec), PartitionSpec(EXPERT), PartitionSpec()

    def xla(form: Form, sums: Sums = "gathered") -> Callable[..., Array]:
        return functools.partial(over_devices, functools.partial(plain, spec.top_k, int(sizes.sum()), sums, form))

    usual, *others = forms_of(spec)
    forms: dict[str, Callable[..., Array]] = {form: xla(form) for form in others}
    if spec.dtype_rhs is None:
        forms["rows added to tokens"] = xla(usual, "scattered")
    return RacedPrograms(
        spec=spec,
        arguments=(*arrays, sizes),
        ours=functools.partial(over_devices, functools.partial(_ours, spec, implementation, chip)),
        xla=xla(usual),
        xla_forms=forms,
        shardings=Shardings(arguments=(*[cut] * len(arrays), replicated), result=cut),
    )


def over_devices(layer: Callable[..., Array], *arguments: Array) -> Array:
    """Compute a layer on the devices of the mesh that is set; the first axis of all but the last argument is cut."""
    cuts = (*[PartitionSpec(EXPERT)] * (len(arguments) - 1), PartitionSpec())
    return jax.shard_map(layer, in_specs=cuts, out_specs=PartitionSpec(EXPERT), check_vma=False)(*arguments)


def _ours(spec: MoeSpec, implementation: Any, chip: Chip, x: Array, logits: Array, *operands: Array) -> Array:
    *weights, _ = operands
    options = {"quantize_lhs": spec.quantize_lhs, "implementation": implementation, "chip": chip}
    return moe(x, logits, *experts_of(weights), top_k=spec.top_k, axis_name=EXPERT, **options)


def plain(top_k: int, used_rows: int, sums: Sums, form: Form, x: Array, logits: Array, *operands: Array) -> Array:
    """Return the sums of a device's tokens in plain JAX, from its parts of the arrays and the sizes of its groups."""
    *matrices, sizes = operands
    here, rows = len(sizes), padded(used_rows, _ROW_MULTIPLE)
    gate, up, down = products(matrices, sizes, form)
    weights, ids = lax.top_k(jax.nn.softmax(logits), top_k)
    weights /= weights.sum(1, keepdims=True)
    tokens, weights, ids = (lax.all_gather(part, EXPERT, tiled=True) for part in (x, weights, ids))
    ids = ids.reshape(-1) - lax.axis_index(EXPERT) * here
    key = jnp.where((ids >= 0) & (ids < here), ids, here)
    order = jnp.argsort(key)
    token = order[:rows] // top_k
    inputs = tokens[token]
    results = down(jax.nn.silu(gate(inputs)) * up(inputs))
    if sums == "gathered":
        place = jnp.argsort(order)
        chosen = jnp.where((key < here)[:, None], results[jnp.minimum(place, rows - 1)], 0)
        total = (chosen.reshape(*weights.shape, -1).astype(jnp.float32) * weights[..., None]).sum(1)
    else:
        weighted = results.astype(jnp.float32) * weights.reshape(-1)[order[:rows], None]
        weighted = jnp.where((key[order[:rows]] < here)[:, None], weighted, 0)
        total = jnp.zeros((tokens.shape[0], x.shape[1]), jnp.float32).at[token].add(weighted)
    return lax.psum_scatter(total.astype(x.dtype), EXPERT, tiled=True)
