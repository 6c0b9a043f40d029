"""The layers of the decoder. Arrays are (batch, sequence, …); weights are float32 and multiplied as bfloat16.

Every part has a name (`jax.named_scope`), which the compiler keeps with each operation that it makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def rms_norm(x: jax.Array, scale: jax.Array | float, epsilon: float) -> jax.Array:
    """Divide x by its root mean square, and multiply by 1 + scale, so that weights begin at 0."""
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    return (wide * (1 + scale)).astype(x.dtype)


def normed(x: jax.Array, weights: Any, name: str, config: Config) -> jax.Array:
    """Return x normed if the layer has a norm of that name, else x."""
    return rms_norm(x, weights[name], config.norm_epsilon) if name in weights else x


def rotate(x: jax.Array, positions: jax.Array, theta: float, share: float = 1.0) -> jax.Array:
    """Rotate pairs of features (i, i + half) of each head by angles that grow with the token's position (RoPE).

    Of the features only the first `share` are rotated.
    """
    if share < 1:
        turned, kept = jnp.split(x, [int(share * x.shape[-1])], axis=-1)
        return jnp.concatenate([rotate(turned, positions, theta), kept], axis=-1)
    half = x.shape[-1] // 2
    angles = positions[:, None, None] / theta ** (jnp.arange(half, dtype=jnp.float32) / half)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def project(x: jax.Array, weight: jax.Array, equation: str) -> jax.Array:
    """Multiply by weights, in the precision of x."""
    return jnp.einsum(equation, x, weight.astype(x.dtype))


def projections(
    x: jax.Array, weights: Any, positions: jax.Array, config: Config, shared: tuple[jax.Array, ...] | None = None
) -> tuple[jax.Array, ...]:
    """Return queries, keys and values, the first two rotated: (batch, sequence, heads, features).

    Keys and values of an earlier layer, `shared`, are returned as they are.
    """
    if config.kv_rank is not None:
        return latent_projections(x, weights, positions, config)
    names = ("query", "key", "value") if shared is None else ("query",)
    heads = {name: project(x, weights[name], "bsd,dhf->bshf") for name in names}
    heads = {name: normed(head, weights, f"{name}_norm", config) for name, head in heads.items()}
    if config.value_norm and shared is None:
        heads["value"] = rms_norm(heads["value"], 0.0, config.norm_epsilon)
    for name in names[:2]:
        heads[name] = rotate(heads[name], positions, config.rope_theta, config.rotated)
    return *(checkpoint_name(head, name) for name, head in heads.items()), *(shared or ())


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


def layer(
    x: jax.Array, weights: Any, config: Config, sharding: Sharding, shared: tuple[jax.Array, ...] | None = None
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Apply one layer, optionally with the keys and values of an earlier one; return its keys and values, too."""
    x = checkpoint_name(x, "input")
    with jax.named_scope("attention"):
        before = normed(x, weights, "attention_norm", config)
        query, key, value = projections(before, weights, jnp.arange(x.shape[1]), config, shared)
        context = attend(query, key, value, config, sharding)
        out = checkpoint_name(project(context, weights["out"], "bshf,hfd->bsd"), "out")
        x += normed(out, weights, "attention_out_norm", config)
        x = sharding.constrain(x, "batch", "sequence", "residual")
    with jax.named_scope("mlp"):
        x += feed_forward(before if config.parallel else x, weights, config, sharding)
        x = sharding.constrain(x, "batch", "sequence", "residual")
    if config.layer_features:
        with jax.named_scope("embedding"):
            gate = jax.nn.gelu(project(x, weights["layer_gate"], "bsd,df->bsf"))
            added = project(gate * weights["layer_input"], weights["layer_up"], "bsf,fd->bsd")
            x += normed(added, weights, "layer_out_norm", config)
    if config.layer_scale:
        x *= (1 + weights["layer_scale"]).astype(x.dtype)
    return x, (key, value)


def layer_inputs(tokens: jax.Array, x: jax.Array, parameters: Any, config: Config) -> jax.Array:
    """Return the tokens' embeddings of each layer with projections of their embeddings x added, of the same variance.

    (layer, batch, sequence, feature).
    """
    with jax.named_scope("embedding"):
        shape = (*tokens.shape, config.layers, config.layer_features)
        rows = parameters["layer_embeddings"].astype(x.dtype)[tokens].reshape(shape)
        projected = project(x, parameters["layer_projection"], "bsd,df->bsf") / math.sqrt(config.width)
        projected = normed(projected.reshape(shape), parameters, "layer_projection_norm", config)
        inputs = (rows * math.sqrt(config.layer_features) + projected) / math.sqrt(2)
        return jnp.moveaxis(inputs, 2, 0)


def with_layer_inputs(parameters: Any, inputs: jax.Array, config: Config) -> Any:
    """Return the parameters with the inputs of each layer among its weights, over which the layers' loops run."""
    stacks, first = {}, 0
    for name, layers in config.stacks.items():
        blocks = inputs[first : first + layers].reshape(-1, config.full_every, *inputs.shape[1:])
        parts = jnp.split(blocks, np.cumsum([count for _, count in config.block])[:-1], axis=1)
        kinds = parameters[name] if len(parts) > 1 else [parameters[name]]
        kinds = [
            weights | {"layer_input": part.reshape(-1, *inputs.shape[1:])}
            for weights, part in zip(kinds, parts, strict=True)
        ]
        stacks[name] = kinds if len(parts) > 1 else kinds[0]
        first += layers
    return parameters | stacks


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

    def layer_of(shared: Mapping[str, tuple[jax.Array, ...]]) -> Callable[[Any, Any, Config], tuple[Any, Any]]:
        """Return a layer that takes `shared` keys and values if its kind has some, and else keeps its own."""

        def one(carried: Any, weights: Any, own: Config) -> tuple[Any, Any]:
            x, latest = carried
            x, cache = layer(x, weights, own, sharding, shared.get(own.kind))
            latest = latest | {own.kind: cache} if latest else latest
            return (x, latest), cache if keep_cache else None

        if config.remat == "none":
            return one
        # The loop itself keeps the compiler from sharing what is computed twice.
        return jax.checkpoint(one, policy=remat_policy(config.remat), prevent_cse=False, static_argnums=2)

    x = sharding.constrain(embed(tokens, parameters["embedding"], config), "batch", "sequence", "residual")
    if config.layer_features:
        parameters = with_layer_inputs(parameters, layer_inputs(tokens, x, parameters, config), config)
    latest = {}
    if config.kv_shared_layers:
        for own, _ in config.block:
            keys = jnp.zeros((*tokens.shape, own.kv_heads, own.head_dim), x.dtype)
            latest[own.kind] = (sharding.constrain(keys, "batch", "sequence", "heads", None),) * 2
    (x, latest), cache = scan_layers(layer_of({}), (x, latest), parameters, config)
    if config.kv_shared_layers:
        (x, _), _ = scan_layers(layer_of(latest), (x, {}), parameters, config, stacks=("kv_shared_layers",))
    with jax.named_scope("loss"):
        x = rms_norm(x, parameters["norm"], config.norm_epsilon)
    return x, cache


def scan_layers(
    one: Callable[[Any, Any, Config], tuple[Any, Any]],
    carried: Any,
    parameters: Any,
    config: Config,
    stacks: Sequence[str] = ("dense_layers", "layers"),
) -> tuple[Any, Any]:
    """Apply `one` (carried value, a layer's weights, its configuration) to layer after layer.

    Return the carried value after the last layer, and the layers' other results, stacked over all layers. In blocks of
    different layers, equal layers are a loop within the loop over blocks.
    """

    def block(carried: Any, kinds: list[Any]) -> tuple[Any, Any]:
        stacked = []
        for weights, (layer_config, _) in zip(kinds, config.block, strict=True):
            carried, caches = jax.lax.scan(lambda x, each, own=layer_config: one(x, each, own), carried, weights)
            stacked.append(caches)
        return carried, joined(stacked)

    def joined(parts: list[Any]) -> Any:
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *each: jnp.concatenate(each), *parts)

    stacked = []
    for stack in (parameters[name] for name in stacks if name in parameters):
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
