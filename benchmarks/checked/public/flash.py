"""JAX's flash attention, forward and backward, with a bias and with segments."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, sound
from checked.public.plain import attention_plain, gradient
from jax.experimental.pallas.ops.tpu import flash_attention as flash

# Both halves of a sequence, of 160 and 96 tokens, see only themselves.
SEGMENTS = np.repeat(np.array([[0, 1]], np.int32), [160, 96], axis=1)
FORWARD = ("block_q", "block_k_major", "block_k")
BACKWARD = (
    "block_q_major_dkv",
    "block_k_major_dkv",
    "block_k_dkv",
    "block_q_dkv",
    "block_k_major_dq",
    "block_k_dq",
    "block_q_dq",
)


def _sizes(names: tuple[str, ...], block: int = 128) -> flash.BlockSizes:
    return flash.BlockSizes(**dict.fromkeys(names, block), block_b=1)


def flash_attention(q, k, v, *, causal=True, block=128):
    """Flash attention in square blocks."""
    sizes = _sizes(FORWARD, block)
    return flash.flash_attention(q, k, v, causal=causal, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)


def flash_with_bias(q, k, v, bias):
    """Flash attention with a bias added to every score."""
    sizes = _sizes(FORWARD)
    return flash.flash_attention(q, k, v, bias, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)


def flash_with_segments(q, k, v, segments):
    """Flash attention within each of several concatenated sequences."""
    ids = flash.SegmentIds(segments, segments)
    sizes = _sizes(FORWARD)
    return flash.flash_attention(q, k, v, segment_ids=ids, causal=True, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)


def flash_gradient(q, k, v):
    """The gradient of a weighted sum of flash attention."""

    def attention(*operands):
        sizes = _sizes(FORWARD + BACKWARD)
        return flash.flash_attention(*operands, causal=True, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)

    return gradient(attention)(q, k, v)


def _segments_plain(q, k, v, segments):
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return attention_plain(q, k, v, seen=same & jnp.tril(jnp.ones((q.shape[2],) * 2, bool)))


def _heads(dtype="float32") -> tuple[jax.ShapeDtypeStruct, ...]:
    return (array(1, 2, 256, 128, dtype=dtype),) * 3


_causal = functools.partial(attention_plain, seen="causal")

SOUND: tuple[Case, ...] = (
    *(sound(flash_attention, *_heads(dtype), reference=_causal, name=dtype) for dtype in ("float32", "bfloat16")),
    sound(flash_attention, *_heads(), reference=attention_plain, causal=False),
    sound(flash_attention, *_heads(), reference=_causal, block=256),
    sound(flash_attention, *_heads("bfloat16"), reference=None, name="no reference"),
    sound(flash_with_bias, *_heads(), array(1, 2, 256, 256),
          reference=lambda q, k, v, bias: attention_plain(q, k, v, bias=bias)),
    sound(flash_with_segments, *_heads(), SEGMENTS, reference=_segments_plain),
    sound(flash_gradient, *_heads(), reference=gradient(_causal)),
)  # fmt: skip
