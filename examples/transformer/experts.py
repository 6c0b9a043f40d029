"""A mixture of experts: each token goes to a few of many small MLPs, whose products are grouped by expert.

Weights of all experts are one array; with the axis `expert` each device of it has some of them. Every device then sees
the tokens of all devices along that axis, computes those that go to its experts, and the parts are added up.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.sharding import PartitionSpec

import systolic

from .config import Config
from .sharding import Sharding
from .tokamax_kernels import grouped_product


def routed(x: jax.Array, weights: Any, config: Config, sharding: Sharding) -> jax.Array:
    """Return the experts' results for each token, added up by the router's weights: (batch, sequence, width)."""
    with jax.named_scope("router"):
        logits = jnp.einsum("bsd,de->bse", x, weights["router"].astype(x.dtype))
        shares, chosen = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32)), config.experts_per_token)
    with jax.named_scope("experts"):
        tokens = sharding.spec("batch", None, None)
        inner, last = sharding.spec("experts", None, "mlp"), sharding.spec("experts", "mlp", None)
        local = sharding.on_parts(
            lambda *parts: _on_a_device(*parts, config=config, sharding=sharding),
            (tokens, tokens, tokens, inner, inner, last),
            PartitionSpec(*tokens),
        )
        matrices = (weights[name].astype(x.dtype) for name in ("expert_gate", "expert_up", "expert_down"))
        return local(x, chosen, shares.astype(x.dtype), *matrices)


def _on_a_device(
    x: jax.Array,
    chosen: jax.Array,
    shares: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
    *,
    config: Config,
    sharding: Sharding,
) -> jax.Array:
    is_cut = sharding.size("expert") > 1
    if config.grouped == "moe":
        axis = "expert" if is_cut else None
        out = checkpoint_name(systolic.moe(x, (chosen, shares), gate, up, down, axis_name=axis), "expert")
        return jax.lax.psum(out, "tensor") if sharding.size("tensor") > 1 else out
    if is_cut:
        x, chosen, shares = (jax.lax.all_gather(array, "expert", axis=0, tiled=True) for array in (x, chosen, shares))
        # This device's experts come first.
        chosen = (chosen - jax.lax.axis_index("expert") * gate.shape[0]) % config.experts
    shape, experts_per_token = x.shape, config.experts_per_token
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat)
    rows = permuted(jnp.repeat(x.reshape(-1, shape[2]), experts_per_token, axis=0), order)
    sizes = jnp.bincount(flat, length=config.experts).astype(jnp.int32)
    sizes = systolic.typical(sizes, untrained_sizes(flat.size, config.experts))[: gate.shape[0]]
    hidden = jax.nn.silu(product_by_expert(rows, gate, sizes, config)) * product_by_expert(rows, up, sizes, config)
    results = product_by_expert(hidden, down, sizes, config)
    # After the last group a kernel leaves the previous contents.
    if is_cut:
        results = jnp.where((jnp.arange(flat.size) < jnp.sum(sizes))[:, None], results, 0)
    results = permuted(results, jnp.argsort(order)).reshape(-1, experts_per_token, shape[2])
    together = jnp.einsum("tkd,tk->td", results, shares.reshape(-1, experts_per_token)).reshape(shape)
    if sharding.size("tensor") > 1:
        together = jax.lax.psum(together, "tensor")
    return jax.lax.psum_scatter(together, "expert", scatter_dimension=0, tiled=True) if is_cut else together


def untrained_sizes(rows: int, experts: int) -> np.ndarray:
    """Return the rows of each expert of an untrained router: drawn at random, all experts equally likely."""
    return np.random.default_rng(0).multinomial(rows, np.full(experts, 1 / experts)).astype(np.int32)


def product_by_expert(rows: jax.Array, matrices: jax.Array, sizes: jax.Array, config: Config) -> jax.Array:
    """Multiply the rows of each group by the group's matrix: (rows, columns)."""
    if config.grouped == "megablox":
        tiles = tuple(map(min, config.expert_tiles, (rows.shape[0], *matrices.shape[1:])))
        out = gmm(rows, matrices, sizes, rows.dtype, tiles)
    elif config.grouped == "tokamax":
        out = grouped_product(rows, matrices, sizes)
    elif config.grouped == "systolic":
        out = systolic.grouped_matmul(rows, matrices, sizes)
    else:
        out = jax.lax.ragged_dot(rows, matrices, sizes)
    return checkpoint_name(out, "expert")


@jax.custom_vjp
def permuted(x: jax.Array, order: jax.Array) -> jax.Array:
    """Return x[order]. Its gradient is permuted back; the gradient of a gather would be added up row by row."""
    return x[order]


def _permuted_forward(x: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x[order], order


def _permuted_backward(order: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None]:
    return gradient[jnp.argsort(order)], None


permuted.defvjp(_permuted_forward, _permuted_backward)
