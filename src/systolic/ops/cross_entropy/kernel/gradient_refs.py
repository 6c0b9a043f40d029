"""The memory of the gradients' kernel."""

from __future__ import annotations

from typing import Any, NamedTuple


class Inputs(NamedTuple):
    x_vmem: Any  # [tile_m, depth], or [tile_m, tile_k] if there is no room for all features
    w_vmem: Any  # [tile_k, tile_n], of the tile whose gradients are computed
    next_w_vmem: Any  # [tile_k, tile_n], of the tile whose logits are computed again
    kept_vmem: Any  # [tile_m, tile_n], of the tile whose errors are computed, if logits were kept
    rows_vmem: Any  # [tile_m, 8] float32, whose columns are listed in `errors`


class Outputs(NamedTuple):
    dx_vmem: Any  # [tile_m, depth] float32
    dw_hbm: Any  # [stored depth, columns]
    sums_hbm: Any  # [stored depth, columns] float32, if there are several tiles of rows


class Scratch(NamedTuple):
    labels_vmem: Any  # [tile_m, 128] int32: of each row in all lanes
    spread_vmem: Any  # [3 or 4, tile_m, 128] float32: the further columns of `rows`, each in all lanes
    logits_vmem: Any  # [2, tile_m, tile_n] float32, if logits are computed again: of this tile, and of the one before
    errors_vmem: Any  # [2, tile_m, tile_n]: of the tile whose errors are computed, and of the one before
    sums_vmem: Any  # [slots, tile_k, tile_n] float32, if sums are read again or are the gradient
    dw_vmem: Any  # [slots, tile_k, tile_n], if the gradient has another dtype
    slots_smem: Any  # [2] int32: of a step in `sums_vmem` and in `dw_vmem`
    read_sem: Any  # [slots]
    write_sem: Any  # [slots]


class GradientRefs(NamedTuple):
    inputs: Inputs
    outputs: Outputs
    scratch: Scratch
