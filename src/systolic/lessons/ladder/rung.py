"""What the rungs share: the record that describes one, the rules they obey, and how they say no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np

from systolic.chips import Chip
from systolic.problem import MatmulProblem, ProblemError, accumulator_dtype
from systolic.tiling import (
    IllegalTilesError,
    Tiles,
    Violation,
    VmemBuffer,
    alignment_violations,
    dtype_violations,
    matmul_buffers,
    size_violations,
)

if TYPE_CHECKING:
    import jax

Rules = Callable[[MatmulProblem, Tiles], list[Violation]]


def operand_rules(problem: MatmulProblem) -> list[Violation]:
    """Dtypes that no rung takes: two different operands, or integers summed into something other than int32."""
    found = []
    if problem.dtype_lhs != problem.dtype_rhs:
        found.append(
            Violation(
                rule="dtypes-agree",
                value=f"lhs is {problem.dtype_lhs} and rhs is {problem.dtype_rhs}",
                limit="the ladder multiplies operands of one dtype",
                fix="convert one of them",
            )
        )
    integers = [accumulator_dtype(dtype) == "int32" for dtype in (problem.dtype_lhs, problem.dtype_out)]
    if integers[0] != integers[1] or (integers[0] and problem.dtype_out != "int32"):
        found.append(
            Violation(
                rule="dtype-out",
                value=f"{problem.dtype_lhs} operands and a {problem.dtype_out} result",
                limit="integers are summed in int32, floats in float32, and neither turns into the other",
                fix=f"use dtype_out={problem.dtype_accumulator}" + ", or v5 for int8" * integers[0],
            )
        )
    return found


def block_rules(problem: MatmulProblem, tiles: Tiles) -> list[Violation]:
    """What v3 to v5 ask of their tiles: none above the matrix, none that leaves a rest, none that is misaligned."""
    return [*operand_rules(problem), *size_violations(problem, tiles), *alignment_violations(problem, tiles)]


def clipped(tiles: Tiles, problem: MatmulProblem) -> Tiles:
    """A rung's usual tiles, no side longer than the matrix."""
    return Tiles(
        tile_m=min(tiles.tile_m, problem.m),
        tile_k=min(tiles.tile_k, problem.k),
        tile_n=min(tiles.tile_n, problem.n),
    )


def checked(rung: str, lhs: jax.Array, rhs: jax.Array, tiles: Tiles, dtype_out: str, rules: Rules) -> MatmulProblem:
    """The product `lhs @ rhs` as a problem, after every rule was asked.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      IllegalTilesError: the tiles break a rule; the message lists every one.
    """
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0]:
        raise ProblemError(f"{rung}: lhs{list(lhs.shape)} @ rhs{list(rhs.shape)} needs lhs[m, k] and rhs[k, n]")
    (m, k), n = lhs.shape, rhs.shape[1]
    dtype_lhs, dtype_rhs = np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name
    problem = MatmulProblem(m=m, k=k, n=n, dtype_lhs=dtype_lhs, dtype_rhs=dtype_rhs, dtype_out=dtype_out)
    if found := rules(problem, tiles):
        raise IllegalTilesError(rung, found)
    return problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One kernel of the ladder and what has to be known to check, time and explain it."""

    name: str
    title: str  # these three: one line each, shown in tables
    adds: str
    costs: str
    multiply: Callable[..., jax.Array]  # multiply(lhs, rhs, *, tiles: Tiles, dtype_out: str, interpret=False)
    default_tiles: Callable[[MatmulProblem, int], Tiles]  # (problem, splits); only v2 looks at splits
    takes_tiles: bool
    sweeps: bool
    pipelined: bool
    accumulator: bool
    rounds_each_step: bool  # the running sum lives in the output block, so each k step rounds it to dtype_out
    rules: Rules = block_rules

    def violations(self, problem: MatmulProblem, tiles: Tiles, chip: Chip) -> list[Violation]:
        """Every rule that is broken, the chip's dtypes too. VMEM is not among them: the compiler has the last word."""
        return [*dtype_violations(problem, chip), *self.rules(problem, tiles)]

    def buffers(self, problem: MatmulProblem, tiles: Tiles) -> tuple[VmemBuffer, ...]:
        """The VMEM buffers that the launcher asks for."""
        return matmul_buffers(problem, tiles, pipelined=self.pipelined, accumulator=self.accumulator)

    def output_roundings(self, problem: MatmulProblem, tiles: Tiles) -> int:
        """How often the running sum is rounded to the output's dtype: a number that the error tolerance needs."""
        return tiles.grid(problem)[2] if self.rounds_each_step else 1
