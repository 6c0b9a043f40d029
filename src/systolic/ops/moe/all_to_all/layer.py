"""A layer of experts over devices that sends each token's rows to the devices of its experts, and the results back.

A device's links carry as many copies of a token as it has experts, however many devices there are, where a ring that
gathers all tokens carries all other devices' tokens.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax

from systolic.compat import varying_alike
from systolic.ops.engine.backend import backend_of
from systolic.ops.exchange.exchange import computed
from systolic.ops.exchange.tables import Slices
from systolic.ops.moe.all_to_all.sending import arriving_rows, sending
from systolic.ops.moe.arguments import Call
from systolic.ops.moe.experts import Experts, mlp
from systolic.ops.moe.permuting import Summing, combined, spread


def sum_by_all_to_all(call: Call, experts: Experts, axis: str, activation: Any, options: dict[str, Any]) -> Array:
    """Return the weighted sum of what the experts of this device's tokens return, [tokens, d]."""
    here, choices = experts.gate.shape[0], call.ids.size
    if not choices:
        return call.x
    devices = int(lax.axis_size(axis))
    backend = backend_of(options["implementation"], options["chip"], None)

    def sent(rows: Array, room: int, slices: Slices) -> Array:
        # Rows that no slice fills are not set: nothing reads them.
        output, _ = varying_alike([lax.empty((room, rows.shape[1]), rows.dtype), rows])
        with jax.named_scope("all_to_all"):
            return computed(backend, rows, output, *slices, axis_name=axis, reads_hbm=True)

    with jax.named_scope("sort"):
        plan = sending(call, here, axis)
    room = arriving_rows(call, here, devices)
    with jax.named_scope("gather"):
        x = spread(backend, call.x, plan.choices, choices)
    x = sent(x, room, plan.sent)
    options = {**options, "rows_per_group": -(-devices * choices // call.experts), "leaves_rest": True}
    with jax.named_scope("experts"):
        x = spread(backend, x, plan.by_expert, room, choices, permutes=True)
        results = mlp(x, experts, plan.sizes, activation, options)
        results = spread(backend, results, plan.by_device, room, choices, permutes=True)
    results = sent(results, choices, plan.back)
    with jax.named_scope("combine"):
        summing = Summing(backend=backend, dtype_out=call.x.dtype.name, used_rows=choices)
        return combined(summing, results, call.weights, plan.choices)
