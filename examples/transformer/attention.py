"""Causal attention: by a splash attention kernel, JAX's or tokamax', or in plain JAX where neither runs."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from .config import Config
from .sharding import Sharding
from .tokamax_kernels import tokamax_splash

_CONTEXT = "context"  # as `Config.remat` names it
_BLOCK = 512  # of splash attention, if the config names none
# Rows of flash attention's blocks, from MaxText/layers/attentions.py of commit 76bd53b0f.
_FLASH_BLOCKS = {
    **dict.fromkeys(("block_q", "block_k_major", "block_k", "block_q_major_dkv", "block_k_major_dkv"), 512),
    **dict.fromkeys(("block_q_dkv", "block_k_dkv", "block_k_major_dq"), 512),
    "block_q_dq": 1024,
    "block_k_dq": 256,
}
_FLASH_BATCH = 2  # sequences of a block, from the same file


def attend(query: jax.Array, key: jax.Array, value: jax.Array, config: Config, sharding: Sharding) -> jax.Array:
    """Return the attention of each token to itself and those before: (batch, sequence, heads, head_dim).

    If the backward pass keeps "context", splash attention's logarithms of sums are kept with it, as MaxText has it:
    else its forward kernel would run again for them.
    """
    if config.attention == "plain":
        context = plain_attention(query, key, value, jnp.arange(query.shape[1]), config.window)
        return checkpoint_name(context, _CONTEXT)
    cut = sharding.spec("batch", None, "heads", None)
    kernel = flash_attention if config.attention == "flash" else splash_attention
    local = sharding.on_parts(lambda q, k, v: kernel(q, k, v, config), (cut, cut, cut), cut)
    context = local(query, key, value)
    return checkpoint_name(context, _CONTEXT) if config.attention == "flash" else context


def flash_attention(query: jax.Array, key: jax.Array, value: jax.Array, config: Config) -> jax.Array:
    """Call the older kernel, which takes heads first, with one segment a sequence, as MaxText did."""
    batch, length = query.shape[:2]
    segment = jnp.ones((batch, length), jnp.int32)
    context = flash.flash_attention(
        *(operand.swapaxes(1, 2) for operand in (query, key, value)),
        segment_ids=flash.SegmentIds(segment, segment),
        causal=True,
        sm_scale=1 / math.sqrt(config.key_dim),
        block_sizes=flash.BlockSizes(
            block_b=min(_FLASH_BATCH, batch), **{name: min(length, rows) for name, rows in _FLASH_BLOCKS.items()}
        ),
    )
    return context.swapaxes(1, 2)


def splash_attention(query: jax.Array, key: jax.Array, value: jax.Array, config: Config) -> jax.Array:
    """Call the kernel, JAX's or tokamax', which takes one sequence with its heads first and does not scale."""
    kernel = _splash_kernel(query.shape[1], query.shape[2], config)
    by_head = ((query / math.sqrt(config.key_dim)).astype(query.dtype), key, value)
    context: Any = jax.vmap(kernel)(*(operand.swapaxes(1, 2) for operand in by_head))
    return context.swapaxes(1, 2)


def _splash_kernel(length: int, heads: int, config: Config) -> Any:
    is_tokamax = config.attention == "tokamax"
    kernels, masks = tokamax_splash() if is_tokamax else (splash, splash)
    mask = masks.CausalMask((length, length))
    if config.window is not None:
        mask = masks.LocalMask((length, length), window_size=(config.window - 1, 0), offset=0)
    blocks = {
        name: kernels.QKVLayout[value] if name.endswith("_layout") else value
        for name, value in _blocks(length, config).items()
    }
    # The mask's blocks are computed now, even if the layers are traced as a loop.
    with jax.ensure_compile_time_eval():
        if is_tokamax:
            settings = kernels.SplashConfig(**blocks, residual_checkpoint_name=_CONTEXT)
            return kernels.make_splash_mha(mask=mask, config=settings, q_seq_shards=1)
        return splash.make_splash_mha(
            mask=splash.MultiHeadMask([mask] * heads),
            block_sizes=splash.BlockSizes(**blocks),
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name=_CONTEXT,
        )


def plain_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array, window: int | None
) -> jax.Array:
    """Attend from queries at `positions` to keys from position 0 on; each key serves a group of queries."""
    grouped = query.reshape(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = jnp.einsum("bskgf,btkf->bkgst", grouped, key, preferred_element_type=jnp.float32)
    at = jnp.arange(key.shape[1])
    seen = at <= positions[:, None]
    if window is not None:
        seen &= at > positions[:, None] - window
    scores = jnp.where(seen, scores / math.sqrt(query.shape[3]), np.finfo(np.float32).min)
    shares = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bkgst,btkf->bskgf", shares, value).reshape(*query.shape[:3], value.shape[3])


def _blocks(length: int, config: Config) -> dict[str, Any]:
    sizes: dict[str, Any] = dict(config.blocks)
    fused = bool(sizes.get("use_fused_bwd_kernel", False))
    for name in ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"):
        if not (fused and name.endswith("_dq")):
            sizes[name] = min(length, int(sizes.get(name, _BLOCK)))
    return sizes
