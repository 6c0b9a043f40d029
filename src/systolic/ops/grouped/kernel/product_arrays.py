"""The arrays of a grouped product, and the buffers of its kernel."""

from __future__ import annotations

from typing import Any, NamedTuple


class GroupedOperands(NamedTuple):
    sizes: Any  # int32 [all groups]
    offset: Any  # int32 [1], or None
    lhs: Any  # [m, k]
    rhs: Any  # [groups, k, n], or [groups, n, k]
    bias: Any = None  # float32 [groups, 1, n]
    row_scale: Any = None  # float32 [m, 1]
    up: Any = None  # as rhs; None: there is no second product, or rhs has its columns too
    residual: Any = None  # [m, n], added last
    rhs_scale: Any = None  # float32 [groups, products · blocks of k, n or n / 128]: rhs and up are quantized
    lhs_scale: Any = None  # float32 [m, 1]: rows are quantized
    existing: Any = None  # [m, n], which the result is written into


class Buffers(NamedTuple):
    table: Any  # int32 [Field.COUNT, visits]
    stored: Any  # int32 [out_slots + 1]: rows that each slot is storing; last, the slot that is next
    stored_tile: Any  # int32 [out_slots]: the slot's tile of columns; None if all are equally wide
    rows: Any
    scale: Any
    lhs_scale: Any
    weights: Any
    bias: Any
    rhs_scale: Any  # [weight_slots, products · blocks of k, tile_n or n / 128]
    column_scale: Any  # [products · blocks of k, tile_n]: scales of each column, if columns share them; else None
    residual: Any  # [residual_slots, rows, tile_n], a panel's rows of a tile of columns
    acc: Any  # [products, rows, columns], sums over k of a block, if that takes several stretches of code; else None
    out: Any
    shared: Any  # [core_n, register, tile_n]
    rows_sem: Any
    scale_sem: Any
    lhs_scale_sem: Any
    weights_sem: Any
    bias_sem: Any
    rhs_scale_sem: Any
    residual_sem: Any
    out_sem: Any


class At(NamedTuple):
    """A step: one visit, and the number of a tile of columns among the tiles of this core."""

    visit: Any
    tile: Any
