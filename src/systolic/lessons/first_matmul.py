"""The first matmul as a template: one kernel, whose transpose and activation are filled in.

    out = activation(lhs @ rhs)        with rhs[k, n]
    out = activation(lhs @ rhsᵀ)       with rhs[n, k]

The body is that of the ladder's v5, with two holes.

The transpose costs nothing. The matrix unit takes its right-hand side either way round, so two things are said
differently and nothing is moved: the index map fetches block (j, kk) where it fetched (kk, j), and the dimension
numbers of the dot contract axis 1 of rhs where they contracted axis 0. Turning rhs round with `swapaxes` before the
kernel would mean the same, but XLA may then write a turned copy of the whole matrix to HBM first.

The activation is applied to the complete sum, in the accumulator's dtype, before it is rounded and leaves VMEM. As a
kernel of its own it would read and write the m·n elements again with next to no arithmetic: bound by memory, whatever
the product was bound by. Any function of an array that works element by element will do; it sees blocks, so one that
looks along rows (a softmax) would be wrong.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: a block of lhs, rhs and out, twice each, and acc once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Shaped

from systolic.chips import Chip
from systolic.lessons.ladder.rung import IllegalTilesError, block_rules, clipped
from systolic.lessons.lesson import Lesson
from systolic.problem import MatmulProblem, ProblemError
from systolic.tiling import Tiles, hbm_bytes

DEFAULT_TILES = Tiles.cube(256)


def identity(acc: Array) -> Array:
    """No activation."""
    return acc


def first_matmul_kernel(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn], or [bn, bk] transposed; the same dtype
    out_vmem,  # [bm, bn] dtype_out
    acc_vmem,  # [bm, bn] float32 or int32, scratch
    *,
    transpose_rhs: bool,
    activation: Callable[[Array], Array],
):
    """Adds one product of blocks to the accumulator; activates and rounds it at the last k step."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    contracted = ((1,), (1,)) if transpose_rhs else ((1,), (0,))
    acc_vmem[...] += lax.dot_general(
        lhs_vmem[...],
        rhs_vmem[...],
        dimension_numbers=(contracted, ((), ())),
        preferred_element_type=acc_vmem.dtype,
    )

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        out_vmem[...] = activation(acc_vmem[...]).astype(out_vmem.dtype)


def first_matmul(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"] | Shaped[Array, "n k"],
    *,
    tiles: Tiles | None = None,
    dtype_out: str | None = None,
    transpose_rhs: bool = False,
    activation: Callable[[Array], Array] = identity,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """`activation(lhs @ rhs)`, with `transpose_rhs` `activation(lhs @ rhs.T)`.

    Args:
      tiles: 256 each way, or the matrix where that is smaller, unless given.
      dtype_out: that of the operands unless given; int32 for integers.
      activation: a function of each element of the float32 (int32) sum.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      IllegalTilesError: a tile above the matrix, one that does not divide it, a misaligned one, or two dtypes.
    """
    contracted = 1 if transpose_rhs else 0
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[contracted]:
        wanted = "rhs[n, k]" if transpose_rhs else "rhs[k, n]"
        raise ProblemError(f"lhs{list(lhs.shape)}, rhs{list(rhs.shape)}, {transpose_rhs=} needs lhs[m, k] and {wanted}")
    (m, k), n = lhs.shape, rhs.shape[1 - contracted]
    dtype_lhs, dtype_rhs = jnp.dtype(lhs.dtype).name, jnp.dtype(rhs.dtype).name
    dtype_out = dtype_out or MatmulProblem.of(m, k, n, dtype_lhs).dtype_out
    problem = MatmulProblem(m=m, k=k, n=n, dtype_lhs=dtype_lhs, dtype_rhs=dtype_rhs, dtype_out=dtype_out)
    tiles = tiles or clipped(DEFAULT_TILES, problem)
    # A transposed block has tile_n rows and tile_k columns. The other two matrices ask both to be multiples of 128 (or
    # whole) already, so the rules of the plain product cover it.
    if found := block_rules(problem, tiles):
        raise IllegalTilesError("first_matmul", found)
    bm, bk, bn = tiles.tile_m, tiles.tile_k, tiles.tile_n
    if transpose_rhs:
        rhs_spec = pl.BlockSpec((bn, bk), lambda i, j, kk: (j, kk))
    else:
        rhs_spec = pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j))
    return pl.pallas_call(
        functools.partial(first_matmul_kernel, transpose_rhs=transpose_rhs, activation=activation),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk)), rhs_spec],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.dtype(problem.dtype_accumulator))],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=problem.flops, transcendentals=0, bytes_accessed=hbm_bytes(problem, tiles)),
        interpret=interpret,
        name="first_matmul",
    )(lhs, rhs)


def lesson(chips: Sequence[Chip] = ()) -> Lesson:
    """512³ in TPU interpret mode, plain and transposed, with and without relu, against float64."""
    del chips  # interpret mode is the same for every chip
    import numpy as np

    from systolic.bench.accuracy import Accuracy, max_abs_error, operands, reference, tolerance

    rows = []
    for dtype in ("float32", "bfloat16"):
        problem = MatmulProblem.of(512, 512, 512, dtype)
        lhs, rhs = operands(problem, seed=0)
        exact = reference(lhs, rhs)
        for transpose_rhs in (False, True):
            for name, activation, wanted in (("none", identity, exact), ("relu", jax.nn.relu, np.maximum(exact, 0))):
                out = first_matmul(
                    jnp.asarray(lhs),
                    jnp.asarray(rhs.T if transpose_rhs else rhs),
                    transpose_rhs=transpose_rhs,
                    activation=activation,
                    interpret=pltpu.InterpretParams(),
                )
                # relu brings two numbers no further apart, so the tolerance of the product is that of the whole.
                accuracy = Accuracy(
                    max_abs_error=max_abs_error(np.asarray(out), wanted, problem), tolerance=tolerance(problem, 1)
                )
                rows.append(
                    {
                        "m": 512,
                        "k": 512,
                        "n": 512,
                        "dtype": dtype,
                        "tiles": str(clipped(DEFAULT_TILES, problem)),
                        "transpose_rhs": transpose_rhs,
                        "activation": name,
                        "max_abs_error": accuracy.max_abs_error,
                        "tolerance": accuracy.tolerance,
                        "ok": accuracy.ok,
                    }
                )
    return Lesson(
        name="first_matmul",
        title="The first matmul, as a template",
        lines=(
            "One kernel body; the transpose of rhs and the activation are parameters of it.",
            "The transpose is an index map and a pair of contracted axes: nothing is copied.",
            "The activation sees the complete float32 sum in VMEM, before it is rounded.",
            "Run in TPU interpret mode on a CPU, which takes float32 in full; a TPU rounds such operands to bfloat16.",
        ),
        rows=tuple(rows),
        ok=all(row["ok"] for row in rows),
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "first_matmul", *sys.argv[1:]]))
