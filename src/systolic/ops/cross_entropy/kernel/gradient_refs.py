"""The memory of the gradients' kernel."""

from __future__ import annotations

from typing import Any, NamedTuple


class Inputs(NamedTuple):
    x_vmem: Any  # [tile_m, depth]
    w_vmem: Any  # [depth, tile_n], of the tile of the step before, whose products are computed
    next_w_vmem: Any  # [depth, tile_n], of the step's tile, whose logits are computed again
    kept_vmem: Any  # [tile_m, tile_n] of the step's tile, if logits were kept
    rows_vmem: Any  # [tile_m, 8] float32, whose columns are listed in `gradient_parts`


class Outputs(NamedTuple):
    dx_vmem: Any  # [tile_m, depth] float32
    dw_hbm: Any  # [stored depth, columns]
    sums_hbm: Any  # [stored depth, columns] float32, if there are several tiles of rows


class Scratch(NamedTuple):
    labels_vmem: Any  # [tile_m, 128] int32: of each row in all lanes
    spread_vmem: Any  # [3 or 4, tile_m, 128] float32: the further columns of `rows`, each in all lanes
    logits_vmem: Any  # [subtile_m, subtile_n] float32, of logits that are computed again
    errors_vmem: Any  # [tile_m, tile_n], of the tile of the step before
    # [tile_m, tile_n], of the step's tile: a ref of its own, because two slots of one ref, whose numbers the compiler
    # does not know, may be the same memory to it: it computed no products before all errors were stored.
    next_errors_vmem: Any
    sums_vmem: Any  # [slots, depth, tile_n] float32
    read_sem: Any  # [slots]
    write_sem: Any  # [slots]
    dw_vmem: Any  # [slots, depth, tile_n], if the sums are converted


class GradientRefs(NamedTuple):
    inputs: Inputs
    outputs: Outputs
    scratch: Scratch
