"""Products and attention as a user might call them, with their tiles as keywords, and float64 references.

    systolic check examples/products.py:v5 --arg "bf16[4096,4096]" --arg "bf16[4096,4096]" \\
        --reference examples/products.py:product_reference

The kernels are the ladder's, JAX's own, and this package's; nothing here knows of `systolic check`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import matmul as pallas_matmul
from jax.experimental.pallas.ops.tpu.megablox import gmm

import systolic
from systolic.lessons.ladder import RUNGS
from systolic.schedule import Tiles
from systolic.spec import accumulator_dtype


def _climbed(name: str, lhs: jax.Array, rhs: jax.Array, tiles: tuple[int, int, int] | None) -> jax.Array:
    """Run a rung of the ladder; `tiles` are of m, k and n, None means the whole of each."""
    (m, k), n = lhs.shape, rhs.shape[1]
    tile_m, tile_k, tile_n = tiles or (m, k, n)
    dtype = lhs.dtype.name
    dtype_out = "int32" if accumulator_dtype(dtype) == "int32" else dtype
    return RUNGS[name].multiply(lhs, rhs, tiles=Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n), dtype_out=dtype_out)


def v1(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs in one piece: the first rung takes no tiles."""
    return _climbed("v1", lhs, rhs, None)


def v2(lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 256, tile_n: int = 256) -> jax.Array:
    """lhs @ rhs by bands of rows and columns, each with all of k."""
    return _climbed("v2", lhs, rhs, (tile_m, lhs.shape[1], tile_n))


def v3(lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 512, tile_k: int = 1024, tile_n: int = 1024) -> jax.Array:
    """lhs @ rhs by blocks, the sum in the output block."""
    return _climbed("v3", lhs, rhs, (tile_m, tile_k, tile_n))


def v4(lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 512, tile_k: int = 1024, tile_n: int = 1024) -> jax.Array:
    """lhs @ rhs by blocks of any shape, the sum in the output block."""
    return _climbed("v4", lhs, rhs, (tile_m, tile_k, tile_n))


def v5(lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 512, tile_k: int = 1024, tile_n: int = 1024) -> jax.Array:
    """lhs @ rhs by blocks, the sum in scratch memory, rounded once."""
    return _climbed("v5", lhs, rhs, (tile_m, tile_k, tile_n))


def jax_example(
    lhs: jax.Array, rhs: jax.Array, *, block_m: int = 512, block_k: int = 1024, block_n: int = 1024
) -> jax.Array:
    """lhs @ rhs by the example kernel that comes with JAX."""
    return pallas_matmul.matmul(lhs, rhs, block_shape=(block_m, block_n), block_k=block_k)


def mine(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs by this package, which chooses the tiles."""
    return systolic.matmul(lhs, rhs, implementation="pallas")


def grouped(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    *,
    tile_m: int = 512,
    tile_k: int = 1024,
    tile_n: int = 1024,
) -> jax.Array:
    """Groups of rows of lhs [m, k], each times its matrix of rhs [groups, k, n]: megablox."""
    return gmm(lhs, rhs, group_sizes, lhs.dtype, tiling=(tile_m, tile_k, tile_n))


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, block_q: int = 512, block_kv: int = 512, causal: bool = True
) -> jax.Array:
    """Softmax attention over [batch, heads, length, depth]: JAX's flash attention."""
    sizes = flash.BlockSizes(block_q=block_q, block_k_major=block_kv, block_k=block_kv, block_b=1)
    return flash.flash_attention(q, k, v, causal=causal, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)


def product_reference(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs in the widest type available; exact for integers."""
    if jnp.issubdtype(lhs.dtype, jnp.integer):
        return jnp.matmul(lhs, rhs, preferred_element_type=jnp.int32)
    return jnp.matmul(lhs, rhs, precision="highest")


def grouped_reference(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Multiply each row by the matrix of its group."""
    ends = jnp.cumsum(group_sizes)
    group = jnp.searchsorted(ends, jnp.arange(lhs.shape[0]), side="right")
    total = jnp.zeros((lhs.shape[0], rhs.shape[2]), lhs.dtype)
    for index in range(rhs.shape[0]):
        total += jnp.where((group == index)[:, None], lhs, 0) @ rhs[index]
    return total


def attention_reference(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    """Softmax attention that computes every score at once."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
