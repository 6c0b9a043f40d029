"""Makes `compiled_programs.json.gz`: small programs as the compiler left them, for tests that read damaged ones.

It takes its place beside this file. The compiler's version stands in each program.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import chip
from systolic.compiler import WorkerPool, submit_compilation
from systolic.timing import target_of


def gather(index, x):
    """Blocks of x in the order of an index, which the copies of the pipeline depend on."""

    def kernel(index_smem, x_vmem, out_vmem):
        del index_smem
        out_vmem[...] = x_vmem[...] * 2

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(index.shape[0],),
        in_specs=[pl.BlockSpec((8, 128), lambda i, index: (index[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, index: (i, 0)),
    )
    out = jax.ShapeDtypeStruct((8 * index.shape[0], 128), x.dtype)
    return pl.pallas_call(kernel, grid_spec=grid, out_shape=out)(index, x)


def matmul(lhs, rhs):
    """A product by XLA."""
    return lhs @ rhs


def main() -> None:
    """Compiles all and writes them."""
    square = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    rows = (jax.ShapeDtypeStruct((4,), jnp.int32), jax.ShapeDtypeStruct((64, 128), jnp.float32))
    wanted = [
        ("v4", matmul, (square, square)),
        ("v5e", gather, rows),
        ("v6e", gather, rows),
        ("v7x", matmul, (square,) * 2),
    ]
    with WorkerPool(max_workers=1) as pool:
        jobs = [submit_compilation(pool, fn, args, target_of(chip(name)), cache=None) for name, fn, args in wanted]
        programs = [asdict(job.result()) for job in jobs]
    text = json.dumps(programs, sort_keys=True)
    file = Path(__file__).with_name("compiled_programs.json.gz")
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
