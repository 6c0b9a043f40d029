"""Rebuild published programs of other packages by these packages.

    copy          a.copy() of a vector
    grouped       megablox' gmm, as JAX has it
    attention     splash attention's forward pass, as JAX has it
    ragged …      tokamax' ragged kernel v1: fwd, dlhs and drhs as its tuning cache has them
    collective    see `collectives`
    recorded …    operations with their arguments, see `recorded`

A row that lacks a value of its program, or is of another kind, is refused with the reason.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.support.choices import unknown_name
from systolic.validation.collectives import collective_program
from systolic.validation.errors import OpError, Rebuilt
from systolic.validation.published import COLLECTIVE, PublishedRow
from systolic.validation.recorded import recorded_program

# Before it, tiles of dlhs are written as (tile_m, tile_k, tile_n), afterwards as (tile_m, tile_n, tile_k).
_DLHS_TILES_TURNED = "2026-07-14"
_THREE_TILES = re.compile(r"\(?(\d{1,6}),\s*(\d{1,6}),\s*(\d{1,6})\)?", re.ASCII)
_BLOCK_FOR_ALL = re.compile(r"block (\d{1,6}) \(q,\s*kv,\s*kv_compute\)", re.ASCII)
_HEADS = re.compile(r"(\d{1,5}) seqs? x (\d{1,4}) q heads \((\d{1,4}) kv\)", re.ASCII)


def foreign_program(row: PublishedRow) -> Rebuilt:
    """Return the program of a row that is not a product.

    Raises:
      OpError: its kind is not known, it lacks a value, or a package is missing.
    """
    if row.arguments:
        return recorded_program(row)
    of_kind = _KINDS.get(row.kind)
    if of_kind is None:
        raise OpError(unknown_name("kind", row.kind, _KINDS))
    return of_kind(row)


def _copy(row: PublishedRow) -> Rebuilt:
    if row.n is None or row.m is not None or row.k is not None:
        raise OpError("a copy has n elements, and neither m nor k")
    dtype = _dtype(row.dtype_lhs)
    return Rebuilt(what=f"copy {row.n} {dtype}", function=jnp.copy, arguments=(jax.ShapeDtypeStruct((row.n,), dtype),))


def _grouped(row: PublishedRow) -> Rebuilt:
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    if not re.match(r"megablox gmm\b(?!_v)", row.op):
        raise OpError(f"op {row.op!r} is not JAX's: JAX has megablox gmm")
    m, k, n = sizes_of(row)
    tiles = _THREE_TILES.fullmatch(row.stated_tiles)
    if tiles is None or not row.group_sizes:
        raise OpError("megablox' gmm needs tiles (tile_m,tile_k,tile_n) and group_sizes, and the row lacks one of them")
    tiling = tuple(map(int, tiles.groups()))
    lhs, rhs, out = (_dtype(name) for name in (row.dtype_lhs, row.dtype_rhs, row.dtype_out))
    groups = len(row.group_sizes)
    return Rebuilt(
        what=f"megablox gmm {m}/{k}/{n} {lhs}×{rhs}→{out} in {tiling}, {row.grouping}",
        function=functools.partial(gmm, preferred_element_type=jnp.dtype(out), tiling=tiling),
        arguments=(jax.ShapeDtypeStruct((m, k), lhs), jax.ShapeDtypeStruct((groups, k, n), rhs), _group_array(row)),
    )


def _attention(row: PublishedRow) -> Rebuilt:
    m, k, n = sizes_of(row)
    heads, block = _HEADS.fullmatch(row.batch), _BLOCK_FOR_ALL.fullmatch(row.stated_tiles)
    if not row.op.startswith("splash attention fwd") or "causal" not in row.op or heads is None or block is None:
        raise OpError(
            "only causal splash attention fwd is known, with batch as in '12 seqs x 64 q heads (8 kv)' and tiles as in "
            "'block 2048 (q,kv,kv_compute)'"
        )
    sequences, q_heads, kv_heads = map(int, heads.groups())
    dtype = _dtype(row.dtype_lhs)
    q, kv = ((sequences, count, length, k) for count, length in ((q_heads, m), (kv_heads, n)))
    return Rebuilt(
        what=f"splash attention {row.sizes} {dtype}, {row.batch}, {row.stated_tiles}",
        function=functools.partial(splash_attention, block=int(block[1])),
        arguments=tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in (q, kv, kv)),
    )


def splash_attention(q: Array, k: Array, v: Array, *, block: int) -> Array:
    """Return JAX's causal splash attention of [sequences, heads, length, head size], with one size for all blocks."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    causal = splash_attention_mask.CausalMask((q.shape[2], k.shape[2]))
    attend = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([causal] * q.shape[1]),
        block_sizes=splash_attention_kernel.BlockSizes(block_q=block, block_kv=block, block_kv_compute=block),
        head_shards=1,
        q_seq_shards=1,
    )
    result: Any = jax.vmap(attend)(q, k, v)  # with residuals it would be a pair
    return result


def _ragged(row: PublishedRow) -> Rebuilt:
    if importlib.util.find_spec("tokamax") is None:
        raise OpError(
            "needs the package tokamax, of which the kernel is: pip install tokamax, with Python 3.12 or later"
        )
    m, k, n = sizes_of(row)
    tiling, groups = (row.tile_m, row.tile_k, row.tile_n), len(row.group_sizes)
    name = row.kind.removeprefix("ragged ")
    if name == "dlhs" and row.date >= _DLHS_TILES_TURNED:
        tiling = (row.tile_m, row.tile_n, row.tile_k)
    shapes = {"fwd": ((m, k), (groups, k, n)), "dlhs": ((m, k), (groups, n, k)), "drhs": ((m, k), (m, n))}[name]
    of_name = {"fwd": ragged_forward, "dlhs": ragged_dlhs, "drhs": ragged_drhs}[name]
    return Rebuilt(
        what=f"tokamax ragged_dot {name} {m}/{k}/{n} in {tiling}, {row.input_buffer_count} buffers, {row.grouping}",
        function=functools.partial(of_name, tiling=tiling, buffers=row.input_buffer_count),
        arguments=(*(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes), _group_array(row)),
    )


def ragged_forward(
    lhs: Array, rhs: Array, sizes: Array, *, tiling: tuple[int, int, int], buffers: int, **options: Any
) -> Array:
    """Return the product of lhs[m, k] and the rhs[groups, k, n] of each row's group by tokamax's kernel."""
    from tokamax._src.ops.ragged_dot import pallas_mosaic_tpu_kernel as kernel  # pyright: ignore[reportMissingImports]

    return kernel.gmm(lhs, rhs, sizes, _PRECISION, jnp.bfloat16, tiling, buffers, **options)


def ragged_dlhs(grad: Array, rhs: Array, sizes: Array, *, tiling: tuple[int, int, int], buffers: int) -> Array:
    """Return its derivative by lhs: grad[m, k] by rhs[groups, n, k]."""
    return ragged_forward(grad, rhs, sizes, tiling=tiling, buffers=buffers, transpose_rhs=True)


def ragged_drhs(lhs: Array, grad: Array, sizes: Array, *, tiling: tuple[int, int, int], buffers: int) -> Array:
    """Return its derivative by rhs: each group's rows of lhs[m, k], transposed, by its rows of grad[m, n]."""
    from tokamax._src.ops.ragged_dot import pallas_mosaic_tpu_kernel as kernel  # pyright: ignore[reportMissingImports]

    return kernel.tgmm(lhs.mT, grad, sizes, _PRECISION, jnp.bfloat16, tiling, buffers)


_PRECISION = (jax.lax.Precision.DEFAULT, jax.lax.Precision.DEFAULT)


def sizes_of(row: PublishedRow) -> tuple[int, int, int]:
    """Return m, k and n of a row; raise `OpError` if one is missing."""
    if row.m is None or row.k is None or row.n is None:
        raise OpError(f"{row.kind} needs m, k and n, and the row lacks one of them")
    return row.m, row.k, row.n


def _dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = jnp.dtype(name)
    except TypeError:
        raise OpError(f"dtype {name!r} is not known") from None
    if dtype.itemsize > 4:
        raise OpError(f"{name} is not a dtype of at most 32 bits that a TPU computes with")
    return dtype


def _group_array(row: PublishedRow) -> np.ndarray:
    return np.asarray(row.group_sizes, np.int32)


_KINDS: Mapping[str, Callable[[PublishedRow], Rebuilt]] = {
    "copy": _copy,
    "grouped": _grouped,
    "attention": _attention,
    COLLECTIVE: collective_program,
    **dict.fromkeys(("ragged fwd", "ragged dlhs", "ragged drhs"), _ragged),
}
