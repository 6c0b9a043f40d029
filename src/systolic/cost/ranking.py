"""The fastest configurations of a product by the pipeline model.

Configurations are timed in the order of their bounds, until no bound is left below the times so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from systolic.chips import Chip
from systolic.cost.bound import config_bound_us
from systolic.cost.estimate import code_bundles, estimated_cost
from systolic.cost.pipeline import ModelledTime, pipeline_time
from systolic.cost.profile import StepCost
from systolic.cost.search_space import search_space
from systolic.cost.step_cost import CostProvenance, step_cost
from systolic.schedule.config import KernelConfig
from systolic.schedule.legality import IllegalTilesError, require_legal
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec

_NO_MATTER = 0.001  # share of the time: candidates that could be faster by less are not timed


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedConfig:
    """A configuration and its time by the pipeline model; `provenance` names the source of its steps' costs."""

    config: KernelConfig
    modelled: ModelledTime
    provenance: CostProvenance

    @property
    def modelled_us(self) -> float:
        return self.modelled.time_us


def legal_configs(configs: Iterable[KernelConfig], timed: Callable[[KernelConfig], TimedConfig]) -> list[TimedConfig]:
    """Return the legal configurations with their times, in the same order; raise the last error if none is legal."""
    timed_configs, refusal = list[TimedConfig](), None
    for config in dict.fromkeys(configs):
        try:
            timed_configs.append(timed(config))
        except IllegalTilesError as error:
            refusal = error
    if not timed_configs and refusal is not None:
        raise refusal
    return timed_configs


class Bounded(NamedTuple):
    """A configuration, a lower bound of its time, and the inputs of its time."""

    least_us: float
    config: KernelConfig
    cost: StepCost
    bundles: float  # bundles of code: of two equally fast configurations, the shorter one is better


def best_first(
    spec: MatmulSpec, chip: Chip, bounds: Iterable[Bounded], count: int | None, provenance: CostProvenance
) -> list[TimedConfig]:
    """Return the `count` fastest, or all, best first, of candidates that come with the least bound first."""
    result: list[tuple[float, float, TimedConfig]] = []
    for bound in bounds:
        if count is not None and len(result) == count and bound.least_us >= result[-1][0] * (1 - _NO_MATTER):
            break
        modelled = pipeline_time(spec, bound.config, chip, bound.cost)
        candidate = TimedConfig(config=bound.config, modelled=modelled, provenance=provenance)
        result.append((modelled.time_us, bound.bundles, candidate))
        if count is not None:
            result = sorted(result, key=lambda entry: entry[:2])[:count]
    return [candidate for _, _, candidate in sorted(result, key=lambda entry: entry[:2])]


def ranked_configs(
    spec: MatmulSpec, chip: Chip, tiles: Tiles | None = None, *, count: int | None = None
) -> tuple[list[TimedConfig], int]:
    """Return the fastest of the search space by estimated costs, best first, and the number that was compared.

    Args:
      tiles: configurations of these tiles only.
      count: number of the fastest to return; None: all, which takes a few seconds for twenty thousand.

    Raises:
      IllegalTilesError: `tiles` break rules; or nothing is legal, with the rules that the smallest tiles break.
    """
    bounds = []
    for config in search_space(spec, chip, tiles):
        cost = estimated_cost(spec, config, chip)
        least_us = config_bound_us(spec, config, chip, cost)
        bounds.append(Bounded(least_us, config, cost, code_bundles(spec, config, chip)))
    bounds.sort(key=lambda bound: bound.least_us)
    return best_first(spec, chip, bounds, count, "modelled"), len(bounds)


def estimated_config(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
    """Return a configuration with its time by estimated costs; raise IllegalTilesError if it breaks rules."""
    require_legal(spec, config, chip)
    modelled = pipeline_time(spec, config, chip, estimated_cost(spec, config, chip))
    return TimedConfig(config=config, modelled=modelled, provenance="modelled")


def timed_config(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
    """Return a configuration with its time by the best costs there are; raise IllegalTilesError if it breaks rules."""
    require_legal(spec, config, chip)
    cost, provenance = step_cost(spec, config, chip)
    return TimedConfig(config=config, modelled=pipeline_time(spec, config, chip, cost), provenance=provenance)
