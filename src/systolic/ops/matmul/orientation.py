"""The orientation of a product, so that its matrices are read and written as XLA stores them.

XLA stores a matrix by columns if that wastes less memory: [4096, 1000] would fill 1,024 columns, so it lies as
[1000, 4096] does. A Pallas kernel takes rows only, so XLA would copy such an operand before the call. Its transpose
needs no copy: `.mT` costs nothing, and the kernel transposes in its index maps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from systolic.schedule import IllegalTilesError, Tiles, Violation
from systolic.spec import FusedOperand, MatmulSpec, Operands

_CALLERS = {"m": "n", "n": "m", "lhs": "rhs", "rhs": "lhs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orientation:
    """The transposes of a product. `swap_ab` computes rhsᵀ · lhsᵀ; the others transpose its operands."""

    swap_ab: bool = False
    lhs: bool = False
    rhs: bool = False

    @classmethod
    def of(cls, spec: MatmulSpec) -> Orientation:
        """Return the orientation in which XLA stores the matrices of a product; batches are not turned."""
        if spec.batch > 1:
            return cls()
        if spec.m == spec.n == 1 and spec.dtype_dot == "int32":
            return cls()  # Mosaic multiplies two rows of integers as a matrix with a column only
        lhs_shape = (spec.k, spec.m) if spec.transpose_lhs else (spec.m, spec.k)
        rhs_shape = (spec.n, spec.k) if spec.transpose_rhs else (spec.k, spec.n)
        # Two products are not swapped: their common operand is on one side.
        swap_ab = spec.pairing is None and stored_by_columns(spec.m, spec.n)
        shapes = (rhs_shape, lhs_shape) if swap_ab else (lhs_shape, rhs_shape)
        return cls(swap_ab=swap_ab, lhs=stored_by_columns(*shapes[0]), rhs=stored_by_columns(*shapes[1]))

    def spec(self, spec: MatmulSpec) -> MatmulSpec:
        fused = self.operands(spec.operands, FusedOperand.turned)
        if self.swap_ab:
            spec = replace(
                spec,
                m=spec.n,
                n=spec.m,
                dtype_lhs=spec.dtype_rhs,
                dtype_rhs=spec.dtype_lhs,
                transpose_lhs=not spec.transpose_rhs,
                transpose_rhs=not spec.transpose_lhs,
                lhs_prologue=spec.rhs_prologue,
                rhs_prologue=spec.lhs_prologue,
            )
        lhs, rhs = spec.lhs_prologue, spec.rhs_prologue
        return replace(
            spec,
            transpose_lhs=spec.transpose_lhs != self.lhs,
            transpose_rhs=spec.transpose_rhs != self.rhs,
            lhs_prologue=replace(lhs, operands=fused.lhs_args) if lhs else None,
            rhs_prologue=replace(rhs, operands=fused.rhs_args) if rhs else None,
            epilogue=replace(
                spec.epilogue, bias=fused.bias, residual=fused.residual, scale=fused.scale, primal=fused.primal
            ),
        )

    def operands(self, operands: Operands, turn: Callable[[Any], Any]) -> Operands:
        """Return the operands for the kernel; `turn` transposes one of them."""
        operands = operands.swapped() if self.swap_ab else operands
        turns = {"lhs": self.lhs, "rhs": self.rhs, "out": self.swap_ab}
        return operands.map(lambda operand, side: turn(operand) if turns[side] else operand, operands.sides)

    def tiles(self, tiles: Tiles | None) -> Tiles | None:
        if tiles is None or not self.swap_ab:
            return tiles
        return Tiles(tile_m=tiles.tile_n, tile_k=tiles.tile_k, tile_n=tiles.tile_m)

    def refusal(self, error: IllegalTilesError, *, of_kernel: bool) -> IllegalTilesError:
        """Return the planner's error in terms of the caller's product; with `of_kernel`, of the kernel's product."""
        if not self.swap_ab:
            return error
        if of_kernel:
            return IllegalTilesError(f"{error.kernel} of rhsᵀ · lhsᵀ, which the kernel computes", error.violations)

        def turned(text: str) -> str:
            return re.sub(r"\b(tile_)?([mn]|lhs|rhs)\b", lambda match: (match[1] or "") + _CALLERS[match[2]], text)

        kernel = re.sub(r"(\d+)/(\d+)/(\d+)", r"\3/\2/\1", error.kernel)
        return IllegalTilesError(
            f"{kernel} of lhs · rhs, computed as rhsᵀ · lhsᵀ because XLA stores the output by columns",
            [
                Violation(
                    rule=violation.rule,
                    value=turned(violation.value),
                    limit=turned(violation.limit),
                    fix=turned(violation.fix),
                )
                for violation in error.violations
            ],
        )

    def __str__(self) -> str:
        turned = [name for name, is_turned in (("lhs", self.lhs), ("rhs", self.rhs)) if is_turned]
        parts = ["computed as rhsᵀ · lhsᵀ"] if self.swap_ab else []
        if turned:
            parts.append(f"{' and '.join(turned)} read by columns")
        return ", ".join(parts) + (", as XLA stores them" if parts else "")


def stored_by_columns(rows: int, columns: int) -> bool:
    """True if XLA stores a [rows, columns] array by columns because its registers of 8 × 128 then waste less.

    Source: entry layouts of compiled programs in bfloat16, float32 and int8 (libtpu 0.0.42.1).
    """
    return _padded(columns, rows) < _padded(rows, columns)


def _padded(rows: int, columns: int) -> int:
    return -(-rows // 8) * 8 * (-(-columns // 128) * 128)
