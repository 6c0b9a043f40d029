"""v5 · Small dtypes, and an accumulator of its own.

    acc[i, j]  = Σ_kk lhs[i, kk] @ rhs[kk, j]                             float32, or int32 for int8
    out[i, j]  = acc rounded to dtype_out                                 once, at the last kk
               = clip(round(scale · acc), −128, 127)                      int8 in, int8 out

bfloat16 halves the bytes, int8 quarters them and is multiplied at twice the rate where the chip has it natively. The
sum needs more bits than its terms: it lives in a scratch buffer in VMEM that exists once, is never copied, and keeps
its contents from step to step. The output block is written only when the sum is complete.

Adds: the scratch accumulator, so bfloat16 is rounded once instead of k/bk times, and int8 is exact. The result may be
requantised inside the kernel: out = scale · sum in int8 leaves with a quarter of the bytes that int32 would take.
`dimension_semantics` tells the compiler that blocks of out are independent ("parallel": a chip whose two cores share
one device may halve them among its cores) and that k is not ("arbitrary": in order, on one core).

Costs: 4 · bm · bn bytes of VMEM for the sum, and one more pass over it at the end. float32 fits as well, but gains
little over v4: its sums were float32 already, and its blocks are twice as large: 512/512/1024 fits where
512/1024/1024 needs 18 MiB.

Precision: products of bfloat16 are exact in float32, so only the sum rounds. int32 holds every sum of int8 products
up to k = 131,071. Rounding to int8 is to the nearest, a tie to the even neighbour; what does not fit saturates, never
wraps.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: a block of lhs, rhs and out, twice each, and acc once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Shaped

from systolic.lessons.ladder.rung import Rung, block_rules, checked, clipped
from systolic.problem import MatmulProblem, ProblemError, dtype_bytes
from systolic.tiling import Tiles, hbm_bytes

if TYPE_CHECKING:
    from systolic.tiling import Violation

DEFAULT_TILES = Tiles(tile_m=512, tile_k=1024, tile_n=1024)


def matmul_v5_kernel(
    lhs_vmem,  # [bm, bk] bfloat16, int8 or float32
    rhs_vmem,  # [bk, bn] the same
    out_vmem,  # [bm, bn] dtype_out
    acc_vmem,  # [bm, bn] float32 or int32, scratch
    *,
    scale: float,
):
    """Adds one product of blocks to the accumulator; rounds it into the output at the last k step."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    acc_vmem[...] += lax.dot_general(
        lhs_vmem[...],
        rhs_vmem[...],
        dimension_numbers=(((1,), (0,)), ((), ())),
        preferred_element_type=acc_vmem.dtype,
    )

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        if out_vmem.dtype == jnp.int8:
            out_vmem[...] = requantised(acc_vmem[...], scale)
        else:
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)


def requantised(acc: Array, scale: float) -> Array:
    """The int32 sums times `scale`, as int8: to the nearest, ties to even, saturated."""
    scaled = acc.astype(jnp.float32) * scale
    return jnp.clip(jnp.round(scaled), -128, 127).astype(jnp.int32).astype(jnp.int8)


def accumulator_rules(problem: MatmulProblem, tiles: Tiles) -> list[Violation]:
    """The rules of blocks; int8 may also come out as int8."""
    found = block_rules(problem, tiles)
    if problem.dtype_lhs == problem.dtype_rhs == problem.dtype_out == "int8":
        found = [violation for violation in found if violation.rule != "dtype-out"]
    return found


def matmul_v5(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"],
    *,
    tiles: Tiles,
    dtype_out: str,
    scale: float = 1.0,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """`lhs @ rhs` with an accumulator, as `dtype_out`; with int8 in and out, `scale · (lhs @ rhs)` requantised.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty; a `scale` that is not a positive
        number, or one for a result that is not requantised.
      IllegalTilesError: a tile above the matrix, one that does not divide it, a misaligned one, or dtypes that
        the ladder does not multiply.
    """
    problem = checked("v5", lhs, rhs, tiles, dtype_out, accumulator_rules)
    if not (math.isfinite(scale) and scale > 0):
        raise ProblemError(f"v5: scale={scale} is no positive number; use one near 127 / the largest sum")
    if scale != 1.0 and dtype_out != "int8":
        raise ProblemError(
            f"v5: scale={scale} with dtype_out={dtype_out}: only int8 is requantised; use dtype_out=int8"
        )
    m, k, n = problem.m, problem.k, problem.n
    bm, bk, bn = tiles.tile_m, tiles.tile_k, tiles.tile_n
    return pl.pallas_call(
        functools.partial(matmul_v5_kernel, scale=scale),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.dtype(problem.dtype_accumulator))],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=problem.flops, transcendentals=0, bytes_accessed=hbm_bytes(problem, tiles)),
        interpret=interpret,
        name="matmul_v5_accumulator",
    )(lhs, rhs)


def default_tiles(problem: MatmulProblem, _splits: int) -> Tiles:
    """512/1024/1024 (m/k/n), or the matrix where that is smaller; half the k for float32, whose blocks are as large."""
    wide = dtype_bytes(problem.dtype_lhs) > 2
    return clipped(replace(DEFAULT_TILES, tile_k=DEFAULT_TILES.tile_k // 2) if wide else DEFAULT_TILES, problem)


RUNG = Rung(
    name="v5",
    title="small dtypes, own accumulator",
    adds="bfloat16 and int8 operands, a float32 or int32 scratch sum, parallel grid axes",
    costs="VMEM for the sum, one more pass over it at the end",
    multiply=matmul_v5,
    default_tiles=default_tiles,
    takes_tiles=True,
    sweeps=True,
    pipelined=True,
    accumulator=True,
    rounds_each_step=False,
    rules=accumulator_rules,
)

if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["ladder", "v5", *sys.argv[1:]]))
