"""The blocks of arrays that a step works on: their shapes, and the dimensions of the product along which they lie."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

from systolic.schedule.tiles import Tiles
from systolic.spec import FusedOperand, MatmulSpec, Operands, Side, dtype_bytes

Dimension = Literal["m", "k", "n"]
Loop = Literal["batch", "m", "n", "k"]

FACTORS: tuple[Literal["lhs"], Literal["rhs"]] = ("lhs", "rhs")  # what is multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of one operand.

    Attributes:
      applies_to: an operand or the output; lhs and rhs apply to themselves.
      shape: rows and columns, as the array is stored.
      along: the dimensions along its rows and along its columns; None if every step has all of the array.
      resident: all of the array stays in VMEM. So does a row, which costs a step more to copy by blocks than it saves;
        but only where blocks cut it evenly, because nothing may be read past its end.
      cut: the dimension along which a step takes its part of a resident row.
      matrix: rows and columns of the whole array.
      matrices: how many different ones the batch has.
      first_column: of the matrix, where it lies after another one in an array; a multiple of the block's columns.
    """

    applies_to: Side
    shape: tuple[int, int]
    along: tuple[Dimension | None, Dimension | None]
    dtype: str
    matrix: tuple[int, int]
    matrices: int
    resident: bool = False
    cut: Dimension | None = None
    first_column: int = 0

    @property
    def loops(self) -> tuple[Loop | None, ...]:
        """The loops of the grid that may change the block."""
        return (*self.along, "batch") if self.matrices > 1 else self.along

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * dtype_bytes(self.dtype)


def block_shape(spec: MatmulSpec, tiles: Tiles, side: Side) -> tuple[int, int]:
    """Return the rows and columns of one block of an operand, as it is stored, or of the output."""
    rows, columns = dimensions(spec, side)
    return getattr(tiles, f"tile_{rows}"), getattr(tiles, f"tile_{columns}")


def dimensions(spec: MatmulSpec, side: Side) -> tuple[Dimension, Dimension]:
    """Return the dimensions along the rows and the columns of an operand, as it is stored, or of the output."""
    if side == "lhs":
        return ("k", "m") if spec.transpose_lhs else ("m", "k")
    if side == "rhs":
        return ("n", "k") if spec.transpose_rhs else ("k", "n")
    return "m", "n"


@functools.lru_cache(maxsize=1024)  # the planner asks for the blocks of the same tiles repeatedly
def operand_blocks(spec: MatmulSpec, tiles: Tiles) -> Operands:
    def block(operand: FusedOperand, side: Side) -> Block:
        rows, columns = dimensions(spec, side)
        size = getattr(spec, columns) if operand.columns else 1
        matrix = (getattr(spec, rows) if operand.rows else 1, size)
        matrices = spec.matrices(side) if operand.rows and operand.columns else 1
        even = not operand.columns or size % getattr(tiles, f"tile_{columns}") == 0
        if not operand.rows and even:
            return Block(
                applies_to=side,
                shape=(1, size),
                along=(None, None),
                dtype=operand.dtype,
                matrix=matrix,
                matrices=matrices,
                resident=True,
                cut=columns if operand.columns else None,
            )
        block_rows, block_columns = block_shape(spec, tiles, side)
        return Block(
            applies_to=side,
            shape=(block_rows if operand.rows else 1, block_columns if operand.columns else 1),
            along=(rows if operand.rows else None, columns if operand.columns else None),
            dtype=operand.dtype,
            matrix=matrix,
            matrices=matrices,
        )

    blocks = spec.operands.map(block, spec.operands.sides)
    if spec.side_by_side and blocks.up is not None:
        blocks = blocks._replace(up=replace(blocks.up, first_column=blocks.up.matrix[1]))
    return blocks
