"""The cost of a configuration's steps: from a profile of its tile if there is one, else from an estimate."""

from __future__ import annotations

from typing import Literal

from systolic.chips import Chip
from systolic.cost.estimate import estimated_cost
from systolic.cost.profile import Kind, ProfiledTile, StepCost, shipped_costs
from systolic.schedule.config import KernelConfig
from systolic.spec import MatmulSpec

CostProvenance = Literal["profiled", "modelled"]


def step_cost(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> tuple[StepCost, CostProvenance]:
    kind = Kind.of(spec, chip)
    tiles = config.tiles
    even = spec.m % tiles.tile_m == 0 and spec.k % tiles.tile_k == 0 and spec.n % tiles.tile_n == 0
    cost = shipped_costs(kind).get(ProfiledTile.of(spec, config)) if kind is not None and even else None
    return (cost, "profiled") if cost is not None else (estimated_cost(spec, config, chip), "modelled")
