"""Functions of plain JAX, whose operations XLA compiles, for `any_function.py`.

Sizes are small enough to compile in seconds and large enough that a time is more than a launch. Operands are shapes,
except for values that decide how long the function takes: a predicate, a trip count, group sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import gelu, silu, softmax

Shape = jax.ShapeDtypeStruct


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function with its arguments.

    Attributes:
      fn: the function.
      args: arrays or shapes.
      flops: of its products on the matrix units: a lower bound of the time at the chip's peak for `dtype`.
      dtype: of the products' operands.
      touched_bytes: the least bytes that it has to read and write; None: all its arguments and results.
      unknown: True if its time depends on computed values, so that the answer is a refusal.
      known_on: chips on which XLA's program always takes the same time.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    flops: float = 0.0
    dtype: str = "bfloat16"
    touched_bytes: int | None = None
    unknown: bool = False
    known_on: tuple[str, ...] = ()


def shaped(dtype: Any, *sizes: int) -> Shape:
    """Return the shape of an array."""
    return Shape(sizes, dtype)


bf16, f32, i32, s8, u8 = (
    functools.partial(shaped, dtype) for dtype in (jnp.bfloat16, jnp.float32, jnp.int32, jnp.int8, jnp.uint8)
)
TOKENS, WIDTH, HIDDEN, HEADS, VOCABULARY = 1024, 1024, 4096, 8, 128_256
_LAYER = {
    "attention_norm": bf16(WIDTH),
    "qkv": bf16(WIDTH, 3 * WIDTH),
    "out": bf16(WIDTH, WIDTH),
    "mlp_norm": bf16(WIDTH),
    "gate": bf16(WIDTH, HIDDEN),
    "up": bf16(WIDTH, HIDDEN),
    "down": bf16(HIDDEN, WIDTH),
}
_LAYER_FLOPS = 2.0 * TOKENS * WIDTH * (4 * WIDTH + 3 * HIDDEN) + 4.0 * TOKENS * TOKENS * WIDTH


# ---- a transformer ----


def attention(q, k, v, *, causal: bool = False):
    """Softmax attention of (heads, tokens, width)."""
    scores = jnp.einsum("htd,hsd->hts", q, k, preferred_element_type=jnp.float32) / np.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e30)
    return jnp.einsum("hts,hsd->htd", softmax(scores).astype(v.dtype), v)


def layer_norm(x, scale, shift):
    """Mean and variance of every row."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = wide.var(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-6) * scale + shift).astype(x.dtype)


def rms_norm(x, scale):
    """Root mean square of every row."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def rope(x):
    """Rotary embedding of (heads, tokens, width)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def transformer_layer(x, weights):
    """Norm, causal attention with rotary embedding, norm, gated perceptron."""

    def heads(y):
        return y.reshape(y.shape[0], HEADS, -1).transpose(1, 0, 2)

    q, k, v = map(heads, jnp.split(rms_norm(x, weights["attention_norm"]) @ weights["qkv"], 3, axis=-1))
    mixed = attention(rope(q), rope(k), v, causal=True).transpose(1, 0, 2).reshape(x.shape)
    x = x + mixed @ weights["out"]
    normed = rms_norm(x, weights["mlp_norm"])
    return x + (silu(normed @ weights["gate"]) * (normed @ weights["up"])) @ weights["down"]


def transformer_layers(x, every):
    """Apply one layer after the other."""
    return lax.scan(lambda x, weights: (transformer_layer(x, weights), None), x, every)[0]


def cross_entropy(logits, labels):
    """Return the mean loss of a batch of tokens."""
    logits = logits.astype(jnp.float32)
    label_logits = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=-1) - label_logits).mean()


def total(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function's result as one number, to be differentiated."""
    return lambda *args: fn(*args).astype(jnp.float32).sum()


def decode(x, cache_k, cache_v, position):
    """Decode one token by attention over a cache, and append to the cache."""
    cache_k = lax.dynamic_update_slice(cache_k, x[:, None, :], (0, position, 0))
    cache_v = lax.dynamic_update_slice(cache_v, x[:, None, :], (0, position, 0))
    return attention(x[:, None, :], cache_k, cache_v), cache_k, cache_v


def adamw(weights, gradient, first, second):
    """Apply one step of AdamW in float32."""
    first = 0.9 * first + 0.1 * gradient
    second = 0.95 * second + 0.05 * gradient * gradient
    return weights - 1e-3 * (first / (jnp.sqrt(second) + 1e-8) + 0.1 * weights), first, second


def transformers() -> dict[str, Function]:
    """Return the parts of a transformer, forward and backward."""
    heads = bf16(HEADS, TOKENS, 128)
    x, logits, labels = bf16(TOKENS, WIDTH), bf16(512, VOCABULARY), i32(512)
    flops = 4.0 * HEADS * TOKENS * TOKENS * 128
    backward = jax.grad(total(attention), (0, 1, 2))
    cached = bf16(HEADS, 4096, 128)
    return {
        "attention": Function(fn=attention, args=(heads,) * 3, flops=flops),
        "attention, causal": Function(fn=functools.partial(attention, causal=True), args=(heads,) * 3, flops=flops),
        "attention, backward": Function(fn=backward, args=(heads,) * 3, flops=2.5 * flops),
        "attention, one token": Function(fn=decode, args=(bf16(HEADS, 128), cached, cached, np.int32(4000))),
        "layer norm": Function(fn=layer_norm, args=(bf16(4096, WIDTH), f32(WIDTH), f32(WIDTH))),
        "layer norm, backward": Function(
            fn=jax.grad(total(layer_norm), (0, 1, 2)), args=(bf16(4096, WIDTH), f32(WIDTH), f32(WIDTH))
        ),
        "RMS norm": Function(fn=rms_norm, args=(bf16(4096, WIDTH), bf16(WIDTH))),
        "rotary embedding": Function(fn=rope, args=(heads,)),
        "softmax": Function(fn=softmax, args=(f32(2048, 2048),)),
        "log softmax, 128k columns": Function(fn=jax.nn.log_softmax, args=(bf16(256, VOCABULARY),)),
        "cross entropy, 128k columns": Function(fn=cross_entropy, args=(logits, labels)),
        "cross entropy, 128k columns, backward": Function(fn=jax.grad(cross_entropy), args=(logits, labels)),
        "perceptron": Function(
            fn=lambda x, up, down: gelu(x @ up) @ down,
            args=(x, _LAYER["up"], _LAYER["down"]),
            flops=4.0 * TOKENS * WIDTH * HIDDEN,
        ),
        "dropout": Function(fn=lambda key, x: jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0),
                            args=(shaped(jnp.uint32, 2), x)),
        "AdamW": Function(fn=adamw, args=(f32(2048, 2048),) * 4),
    }  # fmt: skip


def deep() -> dict[str, Function]:
    """Return whole layers, which take minutes to compile."""
    x, layer_backward = bf16(TOKENS, WIDTH), jax.grad(total(transformer_layer), (0, 1))
    return {
        "transformer layer": Function(fn=transformer_layer, args=(x, _LAYER), flops=_LAYER_FLOPS),
        "transformer layer, backward": Function(fn=layer_backward, args=(x, _LAYER), flops=2.5 * _LAYER_FLOPS),
        "4 transformer layers, backward": Function(
            fn=jax.grad(total(transformer_layers)),
            args=(x, {name: Shape((4, *weight.shape), weight.dtype) for name, weight in _LAYER.items()}),
            flops=4 * 1.5 * _LAYER_FLOPS,
        ),
    }


# ---- sorting, moving, reducing ----


def sorting() -> dict[str, Function]:
    """Return functions that sort and search."""
    row_bytes = WIDTH * 4
    return {
        "top-k": Function(fn=lambda x: lax.top_k(x, 64), args=(f32(64, VOCABULARY),)),
        "approximate top-k": Function(fn=lambda x: lax.approx_max_k(x, 64), args=(f32(64, VOCABULARY),)),
        "argmax": Function(fn=lambda x: jnp.argmax(x, -1), args=(f32(64, VOCABULARY),)),
        "sort, rows": Function(fn=jnp.sort, args=(f32(512, 1024),)),
        "sort, one long": Function(fn=jnp.sort, args=(f32(65_536),)),
        "sort, keys and values": Function(
            fn=lambda keys, x: lax.sort((keys, x), num_keys=1), args=(i32(16_384), f32(16_384))
        ),
        "argsort": Function(fn=jnp.argsort, args=(f32(512, 1024),)),
        "median": Function(fn=lambda x: jnp.median(x, axis=-1), args=(f32(512, 1024),)),
        "unique": Function(fn=lambda x: jnp.unique(x, size=512), args=(i32(2048),)),
        "search sorted": Function(fn=jnp.searchsorted, args=(f32(4096), f32(16_384))),
        "bincount": Function(fn=lambda x: jnp.bincount(x, length=1024), args=(i32(16_384),)),
        "cumulative sum, rows": Function(fn=lambda x: jnp.cumsum(x, -1), args=(f32(1024, 2048),)),
        "cumulative sum, columns": Function(fn=lambda x: jnp.cumsum(x, 0), args=(f32(2048, 1024),)),
        "cumulative sum, one long": Function(fn=jnp.cumsum, args=(f32(262_144),)),
        "cumulative maximum": Function(fn=lambda x: lax.cummax(x, axis=1), args=(f32(1024, 2048),)),
        "associative scan": Function(
            fn=lambda a, b: lax.associative_scan(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b)),
            args=(f32(1024, 1024),) * 2,
        ),
        "gather rows": Function(
            fn=lambda x, index: jnp.take(x, index, axis=0),
            args=(f32(65_536, WIDTH), i32(2048)),
            touched_bytes=2 * 2048 * row_bytes,
        ),
        "gather elements": Function(
            fn=lambda x, index: jnp.take_along_axis(x, index, axis=1),
            args=(f32(1024, 2048), i32(1024, 128)),
            touched_bytes=1024 * 128 * 8,
        ),
        "scatter rows": Function(
            fn=lambda x, index, rows: x.at[index].set(rows), args=(f32(8192, WIDTH), i32(1024), f32(1024, WIDTH))
        ),
        "scatter-add rows": Function(
            fn=lambda x, index, rows: x.at[index].add(rows), args=(f32(8192, WIDTH), i32(1024), f32(1024, WIDTH))
        ),
        "embedding, backward": Function(
            fn=jax.grad(lambda table, index: total(jnp.tanh)(jnp.take(table, index, axis=0))),
            args=(f32(32_000, 256), i32(1024)),
            touched_bytes=32_000 * 256 * 4,
        ),
        "segment sum": Function(
            fn=lambda x, segments: jax.ops.segment_sum(x, segments, num_segments=64), args=(f32(4096, 256), i32(4096))
        ),
        "one-hot": Function(fn=lambda labels: jax.nn.one_hot(labels, 4096), args=(i32(4096),)),
        "one-hot product": Function(
            fn=lambda labels, table: jax.nn.one_hot(labels, 4096, dtype=jnp.bfloat16) @ table,
            args=(i32(1024), bf16(4096, 1024)),
        ),
        "nonzero": Function(fn=lambda x: jnp.nonzero(x, size=512), args=(f32(4096),)),
    }


def moving() -> dict[str, Function]:
    """Return functions that move and reduce."""
    wide = f32(2048, 2048)
    return {
        "add": Function(fn=jnp.add, args=(f32(4096, 4096),) * 2),
        "transpose": Function(fn=lambda x: x.T * 1, args=(wide,)),
        "transpose, three dimensions": Function(fn=lambda x: x.transpose(2, 0, 1) * 2, args=(bf16(64, 512, 256),)),
        "reshape": Function(fn=lambda x: x.reshape(-1, 96) * 2, args=(f32(1024, 768),)),
        "concatenate": Function(fn=lambda x, y: jnp.concatenate([x, y], 1), args=(f32(2048, 1000), f32(2048, 1048))),
        "pad": Function(fn=lambda x: jnp.pad(x, ((3, 5), (7, 9))), args=(wide,)),
        "roll": Function(fn=lambda x: jnp.roll(x, 13, axis=1), args=(wide,)),
        "reverse": Function(fn=lambda x: jnp.flip(x, 1), args=(wide,)),
        "dynamic slice": Function(
            fn=lambda x, at: lax.dynamic_slice(x, (at, 0), (512, 2048)) * 2,
            args=(f32(8192, 2048), np.int32(77)),
            touched_bytes=2 * 512 * 2048 * 4,
        ),
        "dynamic update slice": Function(
            fn=lambda x, part, at: lax.dynamic_update_slice(x, part, (at, 0)),
            args=(f32(4096, 2048), f32(512, 2048), np.int32(77)),
        ),
        "sum, rows": Function(fn=lambda x: x.sum(1), args=(f32(4096, 4096),)),
        "sum, columns": Function(fn=lambda x: x.sum(0), args=(f32(4096, 4096),)),
        "sum, everything": Function(fn=jnp.sum, args=(f32(4096, 4096),)),
        "variance": Function(fn=lambda x: x.var(0), args=(f32(4096, 1024),)),
        "quantize": Function(
            fn=lambda x: (x / (scale := jnp.abs(x).max(-1, keepdims=True) / 127), scale), args=(f32(2048, 2048),)
        ),
        "complex product": Function(fn=lambda x, y: x * y, args=(shaped(jnp.complex64, 1024, 1024),) * 2),
        "erf": Function(fn=lax.erf, args=(wide,)),
        "integer division": Function(fn=lambda x, y: x // y, args=(i32(1024, 1024),) * 2),
        "max pooling": Function(
            fn=lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
            args=(f32(16, 112, 112, 64),),
        ),
        "max pooling, backward": Function(
            fn=jax.grad(total(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))),
            args=(f32(16, 56, 56, 64),),
        ),
        "average pooling": Function(
            fn=lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
            args=(f32(16, 56, 56, 64),),
        ),
    }
