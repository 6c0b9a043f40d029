"""JAX's splash attention: masks that leave out blocks, several queries per key, segments, and the backward pass."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, sound
from checked.public.flash import SEGMENTS
from checked.public.plain import attention_plain, gradient
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

WINDOW = 100


def _mask(kind: str, heads: int, length: int) -> masks.MultiHeadMask:
    shape = (length, length)
    new_mask = {
        "causal": lambda: masks.CausalMask(shape),
        "local": lambda: masks.LocalMask(shape, (WINDOW, 0), 0),
        "full": lambda: masks.FullMask(shape),
        "chunked": lambda: masks.ChunkedCausalMask(shape, 128),
        "of numpy": lambda: masks.NumpyMask(_seen("local", length)),
    }[kind]
    return masks.MultiHeadMask([new_mask() for _ in range(heads)])


def _seen(kind: str, length: int) -> np.ndarray:
    row, column = np.indices((length, length))
    causal = column <= row
    return {
        "causal": causal,
        "local": causal & (row - column <= WINDOW),
        "of numpy": causal & (row - column <= WINDOW),
        "full": np.ones_like(causal),
        "chunked": causal & (row // 128 == column // 128),
    }[kind]


def splash(q, k, v, *, mask="causal", cap=None):
    """Splash attention over [heads, length, depth]."""
    heads_mask = _mask(mask, q.shape[0], q.shape[1])
    return kernels.make_splash_mha(mask=heads_mask, head_shards=1, q_seq_shards=1, attn_logits_soft_cap=cap)(q, k, v)


def splash_mqa(q, k, v, *, mask="causal"):
    """Splash attention with k and v [length, depth], shared by all heads."""
    heads_mask = _mask(mask, q.shape[0], q.shape[1])
    return kernels.make_splash_mqa(mask=heads_mask, head_shards=1, q_seq_shards=1)(q, k, v)


def splash_gqa(q, k, v, segments):
    """Splash attention with q [groups, heads, length, depth], each group with its own k and v, in packed sequences."""
    kernel = kernels.make_splash_mqa(mask=_mask("causal", *q.shape[1:3]), head_shards=1, q_seq_shards=1)
    ids = kernels.SegmentIds(segments[0], segments[0])
    return jax.vmap(kernel, in_axes=(0, 0, 0, None))(q, k, v, ids)


def splash_with_segments(q, k, v, segments):
    """Splash attention within each of several concatenated sequences."""
    kernel = kernels.make_splash_mha(mask=_mask("causal", q.shape[0], q.shape[1]), head_shards=1, q_seq_shards=1)
    return kernel(q, k, v, segment_ids=kernels.SegmentIds(segments[0], segments[0]))


def splash_gradient(q, k, v, *, fused=False):
    """The gradient of a weighted sum of splash attention, by two kernels or one."""
    names = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    names += () if fused else ("block_q_dq", "block_kv_dq")
    sizes = kernels.BlockSizes(**dict.fromkeys(names, 128), use_fused_bwd_kernel=fused)
    mask = _mask("causal", q.shape[0], q.shape[1])
    return gradient(kernels.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes))(q, k, v)


def _plain(q, k, v, *, mask="causal", cap=None):
    return attention_plain(q, k, v, seen=_seen(mask, q.shape[1]), scale=1.0, cap=cap)


def _segments_plain(q, k, v, segments):
    same = segments[0][:, None] == segments[0][None, :]
    return attention_plain(q, k, v, seen=same & _seen("causal", q.shape[1]), scale=1.0)


def _gqa_plain(q, k, v, segments):
    k, v = (x[:, None].repeat(2, 1) for x in (k, v))
    return jax.vmap(lambda q, k, v: _segments_plain(q, k, v, segments))(q, k, v)


def _mqa_plain(q, k, v):
    return _plain(q, jnp.broadcast_to(k, q.shape), jnp.broadcast_to(v, q.shape))


HEADS = (array(2, 256, 128),) * 3
SOUND: tuple[Case, ...] = (
    *(sound(splash, *HEADS, reference=functools.partial(_plain, mask=mask), mask=mask)
      for mask in ("causal", "local", "full", "chunked", "of numpy")),
    sound(splash, *HEADS, reference=functools.partial(_plain, cap=20.0), cap=20.0),
    sound(splash, *(array(2, 256, 128, dtype="bfloat16"),) * 3, reference=None, name="no reference"),
    sound(splash_mqa, array(2, 256, 128), *(array(256, 128),) * 2, reference=_mqa_plain),
    sound(splash_gqa, array(2, 2, 256, 128), *(array(2, 256, 128),) * 2, SEGMENTS, reference=_gqa_plain),
    sound(splash_with_segments, *HEADS, SEGMENTS, reference=_segments_plain),
    sound(splash_gradient, *HEADS, reference=gradient(_plain)),
    sound(splash_gradient, *HEADS, reference=gradient(_plain), fused=True),
)  # fmt: skip
