"""Rank profiled tiles of a product without a compiler, from columns of all tiles of a kind."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from systolic.chips import Chip
from systolic.cost.bound import least_us
from systolic.cost.profile import Kind, Profile, StepCost, shipped_profiles
from systolic.cost.ranking import Bounded, TimedConfig, best_first, timed_config
from systolic.cost.search_space import LONGEST_CODE, SKINNY_ROWS
from systolic.schedule.config import GridOrder
from systolic.schedule.grid import GridSchedule
from systolic.schedule.legality import config_violations
from systolic.spec import MatmulSpec, dtype_bytes


class ProfiledConfigs(NamedTuple):
    """Configurations of profiled tiles, best first, and the number of tiles and orders they were chosen from.

    `least_us` is the time of an ideal tile that divides the sizes, multiplies as fast as any profiled one and wastes
    nothing at the ends; or the time of the least HBM traffic.
    """

    configs: list[TimedConfig]
    considered: int
    least_us: float


def profiled_configs(spec: MatmulSpec, chip: Chip, count: int = 1) -> ProfiledConfigs:
    """Return the `count` fastest configurations of profiled tiles; fewer, or none, if no more divide the sizes.

    Times are within one or two per cent of simulated ones: `benchmarks/tile_profiles.py`.
    """
    kind = Kind.of(spec, chip)
    table = _table(kind) if kind is not None else None
    if table is None:
        return ProfiledConfigs([], 0, 0.0)
    promising = table.promising(spec, chip)
    bounds = (bound for promise in promising for bound in _legal(spec, chip, promise))
    configs = best_first(spec, chip, bounds, count, "profiled")
    # Only these are timed with a whole first step as well: it decides a few microseconds.
    configs = [
        min((config, _whole(spec, chip, config)), key=lambda candidate: candidate.modelled.time_us)
        for config in configs
    ]
    configs.sort(key=lambda candidate: candidate.modelled.time_us)
    return ProfiledConfigs(configs, len(promising), table.least_us(spec, chip))


class _Promise(NamedTuple):
    """A tile and the order of its blocks, and a lower bound of their time."""

    least_us: float
    profile: Profile
    grid_order: GridOrder


def _legal(spec: MatmulSpec, chip: Chip, promise: _Promise) -> Iterator[Bounded]:
    """Return the tile with three stages, or with two if three are too many; nothing if it breaks rules."""
    tile = promise.profile.tile
    for num_stages in (3, 2) if tile.pipeline == "manual" else (2,):
        config = replace(tile.config, num_stages=num_stages, grid_order=promise.grid_order)
        if not config_violations(spec, config, chip):
            yield Bounded(promise.least_us, config, promise.profile.cost, 0.0)
            return


def _whole(spec: MatmulSpec, chip: Chip, candidate: TimedConfig) -> TimedConfig:
    """Return the same configuration with its first step in one chunk."""
    if candidate.config.fill_chunks == 1:
        return candidate
    return timed_config(spec, dataclasses.replace(candidate.config, fill_chunks=1), chip)


@functools.cache
def _table(kind: Kind) -> _Table | None:
    shipped = shipped_profiles(kind)
    if shipped is None:
        return None
    return _Table.of(tuple(profile for profile in shipped.profiles if profile.bundles <= LONGEST_CODE))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Profiles of a kind, and the columns that the bound reads."""

    profiles: tuple[Profile, ...]
    m: Int[np.ndarray, " tiles"]
    k: Int[np.ndarray, " tiles"]
    n: Int[np.ndarray, " tiles"]
    fill_chunks: Int[np.ndarray, " tiles"]
    first: Float[np.ndarray, " tiles"]
    step: Float[np.ndarray, " tiles"]
    end: Float[np.ndarray, " tiles"]

    @classmethod
    def of(cls, profiles: tuple[Profile, ...]) -> _Table:
        return cls(
            profiles=profiles,
            m=np.array([profile.tile.tiles.tile_m for profile in profiles]),
            k=np.array([profile.tile.tiles.tile_k for profile in profiles]),
            n=np.array([profile.tile.tiles.tile_n for profile in profiles]),
            fill_chunks=np.array([profile.tile.fill_chunks for profile in profiles]),
            first=np.array([profile.cost.first for profile in profiles]),
            step=np.array([profile.cost.step for profile in profiles]),
            end=np.array([profile.cost.end for profile in profiles]),
        )

    def least_us(self, spec: MatmulSpec, chip: Chip) -> float:
        machine = chip.machine
        tile_us = float(np.min(self.end / (self.m * self.k * self.n)))
        compute_s = tile_us * spec.m * spec.k * spec.n / chip.cores_per_device / machine.clock_hz
        return max(compute_s, spec.least_hbm_bytes / machine.hbm_bytes_per_s) * 1e6

    def promising(self, spec: MatmulSpec, chip: Chip) -> list[_Promise]:
        """Return the tiles that divide the sizes, in both orders, the least bound first."""
        fits = (spec.m % self.m == 0) & (spec.k % self.k == 0) & (spec.n % self.n == 0)
        fits &= np.array([profile.tile.whole_k for profile in self.profiles]) == (self.k == spec.k)
        if spec.m <= SKINNY_ROWS:  # more than one row of blocks would read all of rhs again
            fits &= self.m == spec.m
        (at,) = np.nonzero(fits)
        tile_m, tile_k, tile_n = self.m[at], self.k[at], self.n[at]
        grid_m, grid_n, grid_k = spec.m // tile_m, spec.n // tile_n, spec.k // tile_k
        tiles = -(-grid_m * grid_n // chip.cores_per_device)
        # A first step that comes whole costs as much as any other.
        first = np.minimum(self.first[at], np.where(grid_k > 1, self.step[at], self.end[at]))
        cost = StepCost(call=0.0, first=first, step=self.step[at], end=self.end[at])  # type: ignore[arg-type]
        lhs_bytes, rhs_bytes = dtype_bytes(spec.dtype_lhs), dtype_bytes(spec.dtype_rhs)
        bytes_per_s = chip.machine.hbm_bytes_per_s
        first_s = tile_k * (tile_m * lhs_bytes + tile_n * rhs_bytes) / self.fill_chunks[at] / bytes_per_s
        result = []
        orders: tuple[GridOrder, ...] = ("m", "n")
        for grid_order in orders:
            schedule = GridSchedule.over(grid_order, m=grid_m, n=grid_n, k=grid_k)
            moved = spec.out_bytes
            moved += schedule.fetches(("m", "k")) * tile_m * tile_k * lhs_bytes
            moved += schedule.fetches(("k", "n")) * tile_k * tile_n * rhs_bytes
            bounds = least_us(tiles, grid_k, cost, first_s, moved / bytes_per_s, chip)
            # The other order changes nothing if there is one row or one column of blocks.
            differs = np.ones(len(at), bool) if grid_order == "m" else (grid_m > 1) & (grid_n > 1)
            result += [
                _Promise(float(bounds[row]), self.profiles[at[row]], grid_order) for row in np.nonzero(differs)[0]
            ]
        return sorted(result, key=lambda promise: promise.least_us)
