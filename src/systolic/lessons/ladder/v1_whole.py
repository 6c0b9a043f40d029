"""v1 · The whole product in one piece.

    out[m, n] = Σ_kk lhs[m, kk] · rhs[kk, n]

A Pallas kernel sees *refs*: names for memory that hold an array once they are read with `[...]`. Without a grid
`pallas_call` copies both operands from HBM to VMEM, runs the body once, and copies the result back.

Adds: nothing; this is the least kernel that multiplies. The matrix unit takes blocks of 128 × 128 (256 × 256 from v6e
on), and the compiler cuts the big product into these by itself.

Costs: all three matrices lie in VMEM at the same time: 12 MiB for 1024³ in float32, 48 MiB for 2048³, where a v5e gives
a kernel 16 MiB. And nothing overlaps: the matrix unit waits until the last byte of both operands has come, and the copy
back waits for the last product.

Precision: the matrix unit of a TPU rounds float32 operands to bfloat16 unless asked not to. Sums are float32
throughout.

Grid: none. In VMEM: lhs, rhs and out, whole, one copy of each.
When to climb on: whenever the three do not fit, or the product is large enough for its copies to be worth hiding.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Shaped

from systolic.lessons.ladder.rung import Rung, checked, operand_rules
from systolic.problem import MatmulProblem
from systolic.tiling import Tiles, Violation, hbm_bytes, size_violations

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu


def matmul_v1_kernel(
    lhs_vmem,  # [m, k] float32, bfloat16 or int8
    rhs_vmem,  # [k, n] the same
    out_vmem,  # [m, n] dtype_out
):
    """All of it at once."""
    # Floats are summed in float32, integers in int32, whatever comes out in the end.
    accumulator = jnp.int32 if jnp.issubdtype(lhs_vmem.dtype, jnp.integer) else jnp.float32
    product = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=accumulator)
    out_vmem[...] = product.astype(out_vmem.dtype)


def whole_rules(problem: MatmulProblem, tiles: Tiles) -> list[Violation]:
    """v1 has one tile: everything."""
    found = size_violations(problem, tiles)
    if not found and tiles != Tiles.whole(problem):
        found = [
            Violation(
                rule="tile-is-whole",
                value=f"tiles {tiles} of {Tiles.whole(problem)}",
                limit="v1 has no grid and takes the matrices whole",
                fix="leave the tiles out, or climb to v3",
            )
        ]
    fix = f"v1 takes {Tiles.whole(problem)} only; climb to v3 for tiles"
    return [*operand_rules(problem), *(dataclasses.replace(violation, fix=fix) for violation in found)]


def matmul_v1(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"],
    *,
    tiles: Tiles,
    dtype_out: str,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """`lhs @ rhs` in one step, as `dtype_out`; `tiles` have to be the whole matrices.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      IllegalTilesError: other tiles, or dtypes that the ladder does not multiply.
    """
    problem = checked("v1", lhs, rhs, tiles, dtype_out, whole_rules)
    return pl.pallas_call(
        matmul_v1_kernel,
        out_shape=jax.ShapeDtypeStruct((problem.m, problem.n), dtype_out),
        cost_estimate=pl.CostEstimate(flops=problem.flops, transcendentals=0, bytes_accessed=hbm_bytes(problem, tiles)),
        interpret=interpret,
        name="matmul_v1_whole",
    )(lhs, rhs)


def default_tiles(problem: MatmulProblem, _splits: int) -> Tiles:
    """Everything."""
    return Tiles.whole(problem)


RUNG = Rung(
    name="v1",
    title="whole arrays",
    adds="a kernel: copy in, multiply, copy out",
    costs="all three matrices in VMEM at once, no copy hidden behind arithmetic",
    multiply=matmul_v1,
    default_tiles=default_tiles,
    takes_tiles=False,
    sweeps=False,
    pipelined=False,
    accumulator=False,
    rounds_each_step=False,
    rules=whole_rules,
)

if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["ladder", "v1", *sys.argv[1:]]))
