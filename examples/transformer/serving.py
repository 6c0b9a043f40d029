"""Serving: a prompt's forward pass, which fills a cache of keys and values, and a step that adds a token to each."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from systolic import Step

from .attention import plain_attention
from .config import Config
from .layers import embed, feed_forward, forward, normed, project, projections, scan_layers, vocabulary_weight
from .models import configured
from .sharding import Sharding, placed
from .step import PARTS, init

# (layer, sequence of the batch, position, head, feature)
_CACHE = (None, "batch", None, "heads", None)


def prefill_step(parameters: Any, tokens: jax.Array, *, config: Config, sharding: Sharding) -> tuple[jax.Array, Any]:
    """Return the most likely next token of each prompt, and the cache of keys and values."""
    x, cache = forward(parameters, tokens, config, sharding, keep_cache=True)
    return _next_token(parameters, x[:, -1:], sharding), cache


def decode_step(
    parameters: Any, cache: Any, tokens: jax.Array, position: jax.Array, *, config: Config, sharding: Sharding
) -> tuple[jax.Array, Any]:
    """Decode one token of each sequence, whose last tokens, `tokens` (batch, 1), are at `position` of the cache."""

    def one(carried: Any, weights: Any, own: Config) -> tuple[Any, None]:
        x, keys, values, number = carried
        with jax.named_scope("attention"):
            before = normed(x, weights, "attention_norm", own)
            query, key, value = projections(before, weights, position[None], own)
            # One row of the whole cache is written in place.
            keys = jax.lax.dynamic_update_slice(keys, key[None], (number, 0, position, 0, 0))
            values = jax.lax.dynamic_update_slice(values, value[None], (number, 0, position, 0, 0))
            context = plain_attention(query, keys[number], values[number], position[None], own.window)
            x += normed(project(context, weights["out"], "bshf,hfd->bsd"), weights, "attention_out_norm", own)
        with jax.named_scope("mlp"):
            x += feed_forward(before if own.parallel else x, weights, own, sharding)
        return (x, keys, values, number + 1), None

    x = embed(tokens, parameters["embedding"], config)
    (x, *cache, _), _ = scan_layers(one, (x, *cache, jnp.int32(0)), parameters, config)
    return _next_token(parameters, normed(x, parameters, "norm", config), sharding), tuple(cache)


def prefill(
    mesh: Mesh | None = None, *, config: str | Config = "llama3.1-8b", batch: int = 1, seq: int = 2048, **changes: Any
) -> Step:
    """Return the forward pass of `batch` prompts of `seq` tokens per device, for `systolic step`; see `step.train`."""
    settings, sharding = _served(config, **changes), Sharding(mesh)
    sequences = batch * sharding.devices
    tokens = jax.ShapeDtypeStruct((sequences, seq), jnp.int32, sharding=sharding.of("batch", "sequence"))
    return Step(
        fn=jax.jit(functools.partial(prefill_step, config=settings, sharding=sharding)),
        args=(_weights(settings, sharding), tokens),
        tokens=sequences * seq,
        flops=_flops(settings, sequences * seq, sequences, seq, causal=False),
        flops_causal=_flops(settings, sequences * seq, sequences, seq, causal=True),
        parts=PARTS,
    )


def decode(
    mesh: Mesh | None = None, *, config: str | Config = "llama3.1-8b", batch: int = 1, seq: int = 2048, **changes: Any
) -> Step:
    """Return a decoding step of `batch` sequences per device, with a cache for `seq` tokens, for `systolic step`."""
    settings, sharding = _served(config, **changes), Sharding(mesh)
    sequences = batch * sharding.devices
    cache = tuple(
        jax.ShapeDtypeStruct(
            (settings.layers, sequences, seq, settings.kv_heads, features), jnp.bfloat16, sharding=sharding.of(*_CACHE)
        )
        for features in (settings.key_dim, settings.head_dim)
    )
    tokens = jax.ShapeDtypeStruct((sequences, 1), jnp.int32, sharding=sharding.of("batch", None))
    position = np.int32(seq - 1)  # the program depends on where the cache is written, so the position needs a value
    flops = _flops(settings, sequences, sequences, seq, causal=False)
    return Step(
        fn=jax.jit(functools.partial(decode_step, config=settings, sharding=sharding), donate_argnums=1),
        args=(_weights(settings, sharding), cache, tokens, position),
        tokens=sequences,
        flops=flops,
        flops_causal=flops,  # the one token sees the whole cache
        parts=PARTS,
    )


def _served(config: str | Config, **changes: Any) -> Config:
    settings = configured(config, remat="none", **changes)
    if settings.kv_shared_layers or settings.layer_features or settings.window_head_dim is not None:
        raise ValueError(
            "prefill and decode have one cache of equal keys for all layers, and no embeddings of each layer; take a "
            "model without kv_shared_layers, layer_features and window_head_dim, or train"
        )
    return settings


def _next_token(parameters: Any, x: jax.Array, sharding: Sharding) -> jax.Array:
    with jax.named_scope("logits"):
        logits = project(x, vocabulary_weight(parameters), "bsd,dv->bsv")
        return jnp.argmax(sharding.constrain(logits, "batch", None, "vocabulary"), axis=-1).astype(jnp.int32)


def _weights(config: Config, sharding: Sharding) -> Any:
    """Return the shapes of the weights, in bfloat16 as serving keeps them."""
    shapes = jax.eval_shape(functools.partial(init, config=config), jax.random.key(0))
    bf16 = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, jnp.bfloat16), shapes)
    return placed(bf16, sharding.of_weights(shapes))


def _flops(config: Config, tokens: int, logits: int, seq: int, *, causal: bool) -> float:
    """Return the operations of a forward pass that computes logits only for the last tokens."""
    return config.forward_flops(tokens, seq, causal=causal) - 2 * (tokens - logits) * config.width * config.vocabulary
