"""Three products with a fault each, to see what finds it. None of them is refused by the compiler.

    systolic check examples/planted_faults.py:dropped_tail --arg "bf16[1100,2048]" --arg "bf16[2048,1024]" \\
        --reference examples/planted_faults.py:reference

    dropped_tail                only whole tiles are counted: the rest of m, n or k after them is lost
    racing_copy                 the next block of lhs is copied into the buffer that is being multiplied
    uninitialised_accumulator   the sum starts with whatever the memory held

Each is right now and then: on sizes that the tiles divide, with copies that come late, on memory that holds zeros. That
is what makes them worth planting.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def reference(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs."""
    return jnp.matmul(lhs, rhs, precision="highest")


def dropped_tail(
    lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 256, tile_k: int = 512, tile_n: int = 256
) -> jax.Array:
    """lhs @ rhs, but the grid counts only whole tiles."""

    def kernel(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // tile_m, n // tile_n, k // tile_k),  # the fault: pl.cdiv, and a mask along k
        in_specs=[
            pl.BlockSpec((tile_m, tile_k), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((tile_k, tile_n), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((tile_m, tile_n), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((tile_m, tile_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="dropped_tail",
    )(lhs, rhs)


def racing_copy(
    lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 256, tile_k: int = 512, tile_n: int = 256
) -> jax.Array:
    """lhs @ rhs with explicit copies, but lhs has one buffer, and its next block arrives while it is being read."""

    def kernel(lhs_hbm, rhs_hbm, out_vmem, lhs_vmem, rhs_vmem, lhs_sem, rhs_sems):
        i, j, steps = pl.program_id(0), pl.program_id(1), lhs_hbm.shape[1] // tile_k

        def copies(kk, slot):
            rows, depth, columns = pl.ds(i * tile_m, tile_m), pl.ds(kk * tile_k, tile_k), pl.ds(j * tile_n, tile_n)
            return (
                pltpu.make_async_copy(lhs_hbm.at[rows, depth], lhs_vmem, lhs_sem),
                pltpu.make_async_copy(rhs_hbm.at[depth, columns], rhs_vmem.at[slot], rhs_sems.at[slot]),
            )

        for copy in copies(0, 0):
            copy.start()

        def step(kk, acc):
            slot = lax.rem(kk, 2)
            for copy in copies(kk, slot):
                copy.wait()

            @pl.when(kk + 1 < steps)
            def _():
                for copy in copies(kk + 1, 1 - slot):
                    copy.start()  # the fault: right for rhs, which has two buffers

            return acc + jnp.dot(lhs_vmem[...], rhs_vmem[slot], preferred_element_type=jnp.float32)

        acc = lax.fori_loop(0, steps, step, jnp.zeros((tile_m, tile_n), jnp.float32))
        out_vmem[...] = acc.astype(out_vmem.dtype)

    (m, _), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // tile_m, n // tile_n),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((tile_m, tile_n), lambda i, j: (i, j)),
        scratch_shapes=[
            pltpu.VMEM((tile_m, tile_k), lhs.dtype),
            pltpu.VMEM((2, tile_k, tile_n), rhs.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
        ],
        name="racing_copy",
    )(lhs, rhs)


def uninitialised_accumulator(
    lhs: jax.Array, rhs: jax.Array, *, tile_m: int = 256, tile_k: int = 512, tile_n: int = 256
) -> jax.Array:
    """lhs @ rhs, but no step clears the sum."""

    def kernel(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        # The fault: @pl.when(pl.program_id(2) == 0) clears acc_vmem.
        acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(pl.cdiv(m, tile_m), pl.cdiv(n, tile_n), k // tile_k),
        in_specs=[
            pl.BlockSpec((tile_m, tile_k), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((tile_k, tile_n), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((tile_m, tile_n), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((tile_m, tile_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="uninitialised_accumulator",
    )(lhs, rhs)
