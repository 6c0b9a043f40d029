"""Refs · Arrays with an address: kernels that write to a given place, and loops without a copy.

    out = x + y                     of refs; 8192 × 5120 float32
    out = x[at : at + 256]          where the kernel computes `at` from words in SMEM
    acc = acc + x[r]                r = 0 … 3, by a loop of kernels that all write the same acc

A JAX array never changes. A function that updates one returns another array, and the elements that stay must be copied.
A ref is a place in memory:

    jax.new_ref(x)      a ref that holds x
    jax.empty_ref(x)    a ref of the shape of x, an array or a `jax.ShapeDtypeStruct`; it may hold anything
    ref[...]            reads;  ref[...] = x  writes
    jax.freeze(ref)     ends the ref, and returns the array

`pl.kernel` takes refs as operands and writes to them in place. A kernel whose operands are all refs has no result:
`out_type=()`, and a `fori_loop` around it carries ().

Making a ref is not free. `new_ref` of an argument copies it, because the caller may still use the array. XLA omits that
copy only if it sees all uses, and it cannot look into a kernel. So make a ref only of what is written.

In a kernel, `pltpu.sync_copy` copies between refs in any memories, also from HBM to HBM. Numbers that it copies to SMEM
are scalars to compute with: here the position of a slice.

With `pallas_call`, `input_output_aliases` does the same for one call: the result takes an operand's place. That is
enough in a loop. Without it the result is a new array, which XLA copies back for the next round: two more passes over
HBM in addition to the three that the addition needs.

Grid: (i,) over blocks of whole rows, of the inner pipeline; the slice has none. In VMEM: a block of each operand and of
the result, twice; the slice never enters VMEM.

This follows "Pallas Tutorial Notes", refs, and aliasing under "OG Pallas". The notes name a ref `or`, which Python
reserves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

# JAX 0.10 has a function for it, later versions a class.
_tensorcore_mesh: Any = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh


def add_matrices_kernel(
    x_vmem,  # [bm, bn] float32
    y_vmem,  # the same
    z_vmem,  # the same
):
    """Add two blocks."""
    z_vmem[...] = x_vmem[...] + y_vmem[...]


def add_refs_kernel(
    x_hbm,  # [m, n] float32
    y_hbm,  # the same
    out_hbm,  # the same; may be one of the others
    *,
    bm: int,
):
    """out = x + y through a pipeline over blocks of rows."""
    m, n = out_hbm.shape
    block = pl.BlockSpec((bm, n), lambda i: (i, 0))
    pipeline = pltpu.emit_pipeline(add_matrices_kernel, grid=(m // bm,), in_specs=[block] * 2, out_specs=[block])
    pipeline(x_hbm, y_hbm, out_hbm)


def piece_kernel(
    at_hbm,  # [2] int32
    x_hbm,  # [m, n] float32
    out_hbm,  # [rows, n] float32
    at_smem,  # [2] int32, scratch
):
    """Copy block at[0] + at[1] of x, or the last one where that is beyond the end."""
    rows, blocks = out_hbm.shape[0], x_hbm.shape[0] // out_hbm.shape[0]
    pltpu.sync_copy(at_hbm, at_smem)
    block = jnp.minimum(at_smem[0] + at_smem[1], blocks - 1)
    pltpu.sync_copy(x_hbm.at[pl.ds(pl.multiple_of(block * rows, rows), rows)], out_hbm)


def accumulate_kernel(
    at_hbm,  # [1] int32
    x_hbm,  # [count, m, n] float32
    acc_hbm,  # [m, n] float32
    at_smem,  # [1] int32, scratch
    *,
    bm: int,
):
    """acc += x[at], in place: each block of acc is read, added to and written back where it was."""
    pltpu.sync_copy(at_hbm, at_smem)
    add_refs_kernel(acc_hbm, x_hbm.at[at_smem[0]], acc_hbm, bm=bm)


def accumulate_block_kernel(
    at_smem,  # [1] int32
    x_vmem,  # [bm, n] float32
    acc_vmem,  # the same
    out_vmem,  # the same
):
    """Add two blocks, in `pallas_call`: its index map has read `at`."""
    del at_smem
    add_matrices_kernel(x_vmem, acc_vmem, out_vmem)


def _on_one_core(kernel: Callable[..., None], *, out_type: Any = (), at: int = 0) -> Callable[..., Any]:
    """Return `kernel` as a function of arrays and refs, with `at` words of SMEM; with no `out_type` it writes refs."""
    return pl.kernel(
        kernel,
        out_type=out_type,
        mesh=_tensorcore_mesh(axis_name="core", num_cores=1),
        scratch_types=[pltpu.SMEM((at,), jnp.int32)] if at else [],
    )


def add_arrays(x: Array, y: Array, *, bm: int = 64) -> Array:
    """x + y by a kernel that is given arrays and returns one."""
    out_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return _on_one_core(functools.partial(add_refs_kernel, bm=bm), out_type=out_type)(x, y)


def add_refs(x: Array, y: Array, *, bm: int = 64) -> Array:
    """x + y by the same kernel, all three refs, as the notes have it."""
    x_ref, y_ref, out_ref = jax.new_ref(x), jax.new_ref(y), jax.empty_ref(x)
    _on_one_core(functools.partial(add_refs_kernel, bm=bm))(x_ref, y_ref, out_ref)
    return jax.freeze(out_ref)


def add_into_ref(x: Array, y: Array, *, bm: int = 64) -> Array:
    """x + y by the same kernel; only what it writes is a ref."""
    out_ref = jax.empty_ref(x)
    _on_one_core(functools.partial(add_refs_kernel, bm=bm))(x, y, out_ref)
    return jax.freeze(out_ref)


def add_refs_without_a_kernel(x: Array, y: Array) -> Array:
    """x + y of refs in plain JAX: XLA sees that x and y are only read, and copies nothing."""
    x_ref, y_ref, out_ref = jax.new_ref(x), jax.new_ref(y), jax.empty_ref(x)
    out_ref[...] = x_ref[...] + y_ref[...]
    return jax.freeze(out_ref)


def piece(at: Array, x: Array, *, rows: int = 256) -> Array:
    """Block at[0] + at[1] of `rows` rows of x."""
    out_type = jax.ShapeDtypeStruct((rows, x.shape[1]), x.dtype)
    return _on_one_core(piece_kernel, out_type=out_type, at=2)(at, x)


def sum_in_place(x: Array, *, bm: int = 64) -> Array:
    """Return the sum over the first axis by a loop of kernels over one ref."""
    acc_ref = jax.new_ref(jnp.zeros(x.shape[1:], x.dtype))
    accumulate = _on_one_core(functools.partial(accumulate_kernel, bm=bm), at=1)
    lax.fori_loop(0, x.shape[0], lambda r, nothing: accumulate(jnp.full((1,), r, jnp.int32), x, acc_ref), ())
    return jax.freeze(acc_ref)


def sum_by_calls(x: Array, *, aliased: bool, bm: int = 64) -> Array:
    """Sum over the first axis by a loop of `pallas_call`; the result takes acc's place if `aliased`."""
    count, m, n = x.shape
    block = pl.BlockSpec((bm, n), lambda i, at: (i, 0))
    accumulate = pl.pallas_call(
        accumulate_block_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(m // bm,),
            in_specs=[pl.BlockSpec((None, bm, n), lambda i, at: (at[0], i, 0)), block],
            out_specs=block,
        ),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        input_output_aliases={2: 0} if aliased else {},  # operand 2 is acc: at counts as operand 0
        name="sum_by_calls",
    )
    return lax.fori_loop(
        0, count, lambda r, acc: accumulate(jnp.full((1,), r, jnp.int32), x, acc), jnp.zeros((m, n), x.dtype)
    )
