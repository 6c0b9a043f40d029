"""Makes the runs beside this file: a blocked product of 2048² in bfloat16 on a v6e, and XLA's."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic import simulate


def scratch_matmul(lhs, rhs):
    """lhs @ rhs with a float32 sum in scratch memory."""

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
        grid=(m // 512, n // 1024, k // 1024),
        in_specs=[
            pl.BlockSpec((512, 1024), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((1024, 1024), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((512, 1024), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((512, 1024), jnp.float32)],
    )(lhs, rhs)


def xla_matmul(lhs, rhs):
    """lhs @ rhs."""
    return lhs @ rhs


if __name__ == "__main__":
    square = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
    for fn in (scratch_matmul, xla_matmul):
        run = simulate(fn, square, square, chip="v6e", spans=60)
        Path(__file__).with_name(f"{fn.__name__}_v6e.json").write_text(run.to_json() + "\n", encoding="utf-8")
