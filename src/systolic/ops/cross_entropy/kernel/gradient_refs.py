"""The memory of the gradients' kernel."""

from __future__ import annotations

from typing import Any, NamedTuple


class Inputs(NamedTuple):
    x_vmem: Any  # [tile_m, depth]
    w_vmem: Any  # [depth, tile_n]; with kept logits, of the tile of the step before
    rows_vmem: Any  # [tile_m, 8] float32, whose columns are listed in `gradient_parts`
    kept_vmem: Any  # [tile_m, tile_n] of kept logits; None: they are computed again


class Outputs(NamedTuple):
    dx_vmem: Any  # [tile_m, depth] float32
    dw_hbm: Any  # [stored depth, columns]
    sums_hbm: Any  # [stored depth, columns] float32, if there are several tiles of rows


class Scratch(NamedTuple):
    logits_vmem: Any  # [subtile_m, subtile_n] float32, of logits that are computed again
    errors_vmem: Any  # [slots, tile_m, tile_n]
    sums_vmem: Any  # [slots, depth, tile_n] float32
    read_sem: Any  # [slots]
    write_sem: Any  # [slots]
    dw_vmem: Any  # [slots, depth, tile_n], if the sums are converted


class GradientRefs(NamedTuple):
    inputs: Inputs
    outputs: Outputs
    scratch: Scratch
