"""The layers of the decoder. Arrays are (batch, sequence, …); weights are float32 and multiplied as bfloat16.

Every part has a name (`jax.named_scope`), which the compiler keeps with each operation that it makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from .attention import attend
from .config import Config
from .experts import routed
from .sharding import Sharding

# Values that the forward pass stores for the backward pass of a layer; "none": all of them.
REMAT = {
    "full": (),
    "minimal": ("query", "key", "value", "out", "gate", "up", "down"),
}
OFFLOAD = "offload:"  # prefix of names of values that are kept in the host's memory


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """Divide x by its root mean square, and multiply by 1 + scale, so that weights begin at 0."""
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    return (wide * (1 + scale)).astype(x.dtype)


def normed(x: jax.Array, weights: Any, name: str, config: Config) -> jax.Array:
    """Return x normed if the layer has a norm of that name, else x."""
    return rms_norm(x, weights[name], config.norm_epsilon) if name in weights else x


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotate pairs of features (i, i + half) of each head by angles that grow with the token's position (RoPE)."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] / theta ** (jnp.arange(half, dtype=jnp.float32) / half)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def project(x: jax.Array, weight: jax.Array, equation: str) -> jax.Array:
    """Multiply by weights, in the precision of x."""
    return jnp.einsum(equation, x, weight.astype(x.dtype))


def projections(x: jax.Array, weights: Any, positions: jax.Array, config: Config) -> tuple[jax.Array, ...]:
    """Return queries, keys and values, the first two rotated: (batch, sequence, heads, features)."""
    if config.kv_rank is not None:
        return latent_projections(x, weights, positions, config)
    query, key, value = (project(x, weights[name], "bsd,dhf->bshf") for name in ("query", "key", "value"))
    query, key = normed(query, weights, "query_norm", config), normed(key, weights, "key_norm", config)
    query, key = (rotate(operand, positions, config.rope_theta) for operand in (query, key))
    return checkpoint_name(query, "query"), checkpoint_name(key, "key"), checkpoint_name(value, "value")


def latent_projections(x: jax.Array, weights: Any, positions: jax.Array, config: Config) -> tuple[jax.Array, ...]:
    """Return `projections` with keys and values of all heads made from a few features (DeepSeek-V2, section 2.1)."""
    query, turned_query = jnp.split(project(x, weights["query"], "bsd,dhf->bshf"), [config.head_dim], axis=-1)
    latent, turned = jnp.split(project(x, weights["kv_down"], "bsd,dr->bsr"), [config.kv_rank or 0], axis=-1)
    latent = rms_norm(latent, weights["kv_norm"], config.norm_epsilon)
    key, value = jnp.split(project(latent, weights["kv_up"], "bsr,rhf->bshf"), [config.head_dim], axis=-1)
    turned_query = rotate(turned_query, positions, config.rope_theta)
    turned = jnp.broadcast_to(rotate(turned[:, :, None], positions, config.rope_theta), turned_query.shape)
    query = jnp.concatenate([query, turned_query], axis=-1)
    key = jnp.concatenate([key, turned], axis=-1)
    return checkpoint_name(query, "query"), checkpoint_name(key, "key"), checkpoint_name(value, "value")


def mlp(x: jax.Array, weights: Any, config: Config, sharding: Sharding) -> jax.Array:
    """Apply the MLP, gated or not."""
    up = checkpoint_name(project(x, weights["up"], "bsd,df->bsf"), "up")
    if config.gated:
        gate = checkpoint_name(project(x, weights["gate"], "bsd,df->bsf"), "gate")
        hidden = getattr(jax.nn, config.activation)(gate) * up
    else:
        hidden = getattr(jax.nn, config.activation)(up)
    hidden = sharding.constrain(hidden, "batch", "sequence", "mlp")
    return checkpoint_name(project(hidden, weights["down"], "bsf,fd->bsd"), "down")


def feed_forward(x: jax.Array, weights: Any, config: Config, sharding: Sharding) -> jax.Array:
    """Apply the layer's norm, if it has one, and the MLP or the shared experts and those that the router chooses."""
    x = normed(x, weights, "mlp_norm", config)
    if "router" not in weights:
        return normed(mlp(x, weights, config, sharding), weights, "mlp_out_norm", config)
    out = routed(x, weights, config, sharding)
    if config.shared_experts:
        out += mlp(x, weights, config, sharding)
    return normed(out, weights, "mlp_out_norm", config)


def layer(x: jax.Array, weights: Any, config: Config, sharding: Sharding) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Apply one layer; return its keys and values, too."""
    with jax.named_scope("attention"):
        before = normed(x, weights, "attention_norm", config)
        query, key, value = projections(before, weights, jnp.arange(x.shape[1]), config)
        context = checkpoint_name(attend(query, key, value, config, sharding), "context")
        out = checkpoint_name(project(context, weights["out"], "bshf,hfd->bsd"), "out")
        x += normed(out, weights, "attention_out_norm", config)
        x = sharding.constrain(x, "batch", "sequence", "residual")
    with jax.named_scope("mlp"):
        x += feed_forward(before if config.parallel else x, weights, config, sharding)
        return sharding.constrain(x, "batch", "sequence", "residual"), (key, value)


def embed(tokens: jax.Array, table: jax.Array, config: Config) -> jax.Array:
    """Return the tokens' rows of the table."""
    with jax.named_scope("embedding"):
        if config.one_hot:
            x = project(jax.nn.one_hot(tokens, config.vocabulary, dtype=jnp.bfloat16), table, "bsv,vd->bsd")
        else:
            x = table.astype(jnp.bfloat16)[tokens]
        # A table that also projects to the vocabulary has small entries.
        return x * math.sqrt(config.width) if config.tied else x


def remat_policy(text: str) -> Callable[..., Any]:
    """Return the checkpoint policy of the backward pass, as `Config.remat` names it."""
    host = text.startswith(OFFLOAD)
    names = REMAT.get(text, tuple(text.removeprefix(OFFLOAD).split("+")))
    if not host:
        return jax.checkpoint_policies.save_only_these_names(*names)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


def forward(
    parameters: Any, tokens: jax.Array, config: Config, sharding: Sharding, *, keep_cache: bool = False
) -> tuple[jax.Array, Any]:
    """Apply the layers to tokens, and norm; return the keys and values of all layers on request.

    Equal layers are one loop, so that compiling many takes no longer than compiling two.
    """

    def one(x: jax.Array, weights: Any, own: Config) -> tuple[jax.Array, Any]:
        x, cache = layer(x, weights, own, sharding)
        return x, cache if keep_cache else None

    if config.remat != "none":
        # The loop itself keeps the compiler from sharing what is computed twice.
        policy = remat_policy(config.remat)
        one = jax.checkpoint(one, policy=policy, prevent_cse=False, static_argnums=2)

    x = sharding.constrain(embed(tokens, parameters["embedding"], config), "batch", "sequence", "residual")
    x, cache = scan_layers(one, x, parameters, config)
    with jax.named_scope("loss"):
        x = rms_norm(x, parameters["norm"], config.norm_epsilon)
    return x, cache


def scan_layers(
    one: Callable[[Any, Any, Config], tuple[Any, Any]], carried: Any, parameters: Any, config: Config
) -> tuple[Any, Any]:
    """Apply `one` (carried value, a layer's weights, its configuration) to layer after layer.

    Return the carried value after the last layer, and the layers' other results, stacked over all layers. In blocks of
    different layers, equal layers are a loop within the loop over blocks.
    """

    def block(carried: Any, stacks: list[Any]) -> tuple[Any, Any]:
        stacked = []
        for weights, (layer_config, _) in zip(stacks, config.block, strict=True):
            carried, caches = jax.lax.scan(lambda x, each, own=layer_config: one(x, each, own), carried, weights)
            stacked.append(caches)
        return carried, joined(stacked)

    def joined(parts: list[Any]) -> Any:
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *each: jnp.concatenate(each), *parts)

    stacked = []
    for stack in (parameters[name] for name in ("dense_layers", "layers") if name in parameters):
        if config.full_every == 1:
            carried, caches = block(carried, [stack])
        else:
            blocks = [
                jax.tree.map(lambda each, count=count: each.reshape(-1, count, *each.shape[1:]), weights)
                for weights, (_, count) in zip(stack, config.block, strict=True)
            ]
            carried, caches = jax.lax.scan(block, carried, blocks)
            caches = jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:]), caches)
        stacked.append(caches)
    return carried, joined(stacked)


def vocabulary_weight(parameters: Any) -> jax.Array:
    """Return the projection to the vocabulary, (width, vocabulary): a separate matrix, or the embedding's table."""
    return parameters["logits"] if "logits" in parameters else parameters["embedding"].T
