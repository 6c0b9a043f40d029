"""Profiled tiles of a product, ranked without a compiler: their pipelines are walked, the most promising first.

A bound that arithmetic on whole arrays gives says where to stop: no tile that is left can be faster.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from systolic.chips import Chip
from systolic.cost.choose import LONGEST_CODE, THIN_ROWS, Choice, can_use
from systolic.cost.profile import Kind, Profile, ProfiledTile, StepCost, shipped_profiles
from systolic.cost.walk import walked_time
from systolic.schedule.config import GridOrder, KernelConfig
from systolic.spec import MatmulSpec, dtype_bytes

_NO_MATTER = 0.001  # of the time: what could be faster by less is not looked at


class ProfiledChoices(NamedTuple):
    """Blockings of profiled tiles, best first, and of how many tiles and orders they are the best.

    `least_us` is what a tile would take that divides the sizes, multiplies as fast as any profiled one and wastes
    nothing at the ends; or the least HBM traffic.
    """

    choices: list[Choice]
    considered: int
    least_us: float


def profiled_choices(spec: MatmulSpec, chip: Chip, count: int = 1) -> ProfiledChoices:
    """The `count` fastest configurations of profiled tiles; fewer, or none, where no more divide the sizes.

    Times are within one or two per cent of simulated ones: `benchmarks/tile_profiles.py`.
    """
    table = _table(Kind.of(spec, chip))
    found: list[Choice] = []
    promises = table.promising(spec, chip) if table is not None else []
    for promise in promises:
        if len(found) == count and promise.least_us >= found[-1].modelled.time_us * (1 - _NO_MATTER):
            break
        choice = _walked(spec, chip, promise.profile, promise.grid_order)
        found += [choice] if choice is not None else []
        found = sorted(found, key=lambda one: one.modelled.time_us)[:count]
    # Whether the first step had better come whole is asked of these only: it decides a few microseconds.
    whole = [_whole(spec, chip, choice, table) for choice in found] if table is not None else []
    found = [min(pair, key=lambda one: one.modelled.time_us) for pair in zip(found, whole, strict=True)]
    least_us = table.least_us(spec, chip) if table is not None else 0.0
    return ProfiledChoices(sorted(found, key=lambda one: one.modelled.time_us), len(promises), least_us)


def profiled_choice(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> Choice | None:
    """A configuration with its profiled time, where its tile has a profile."""
    table = _table(Kind.of(spec, chip))
    if table is None or any(getattr(spec, one) % getattr(config.tiles, f"tile_{one}") for one in "mkn"):
        return None
    cost = table.costs.get(ProfiledTile.of(spec, config))
    if cost is None:
        return None
    return Choice(config=config, modelled=walked_time(spec, config, chip, cost), provenance="profiled")


def _walked(spec: MatmulSpec, chip: Chip, profile: Profile, grid_order: GridOrder) -> Choice | None:
    """The tile with three stages, or where that is too much two; None where it breaks rules."""
    tile = profile.tile
    sides = {"tiles": tile.tiles, "subtile_m": tile.subtile_m, "subtile_n": tile.subtile_n}
    for num_stages in (3, 2) if tile.pipeline == "manual" else (2,):
        config = KernelConfig(
            **sides, pipeline=tile.pipeline, num_stages=num_stages, grid_order=grid_order, fill_chunks=tile.fill_chunks
        )
        if can_use(spec, config, chip):
            time = walked_time(spec, config, chip, profile.cost)
            return Choice(config=config, modelled=time, provenance="profiled")
    return None


def _whole(spec: MatmulSpec, chip: Chip, choice: Choice, table: _Table) -> Choice:
    """The same with its first step in one chunk, where it has several."""
    if choice.config.fill_chunks == 1:
        return choice
    config = dataclasses.replace(choice.config, fill_chunks=1)
    cost = table.costs[ProfiledTile.of(spec, config)]
    return Choice(config=config, modelled=walked_time(spec, config, chip, cost), provenance="profiled")


def _in_chunks(profile: Profile) -> Iterator[tuple[int, StepCost]]:
    """The first step in as many chunks as it is profiled with, and whole, as any other step."""
    tile, cost = profile.tile, profile.cost
    yield tile.fill_chunks, cost
    if tile.fill_chunks > 1:
        yield 1, dataclasses.replace(cost, first=cost.end if tile.whole_k else cost.step)


@functools.cache
def _table(kind: Kind | None) -> _Table | None:
    profiles = shipped_profiles(kind) if kind is not None else None
    if profiles is None:
        return None
    return _Table.of(tuple(one for one in profiles.profiles if one.bundles <= LONGEST_CODE))


class _Promise(NamedTuple):
    """A tile and the order of its blocks, and a time below which they cannot be."""

    least_us: float
    profile: Profile
    grid_order: GridOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Profiles of a kind, and what the bound needs of them in columns."""

    profiles: tuple[Profile, ...]
    costs: dict[ProfiledTile, StepCost]
    m: Int[np.ndarray, " tiles"]
    k: Int[np.ndarray, " tiles"]
    n: Int[np.ndarray, " tiles"]
    whole_k: Bool[np.ndarray, " tiles"]
    fill_chunks: Int[np.ndarray, " tiles"]
    first: Float[np.ndarray, " tiles"]
    step: Float[np.ndarray, " tiles"]
    end: Float[np.ndarray, " tiles"]

    @classmethod
    def of(cls, profiles: tuple[Profile, ...]) -> _Table:
        """In the order of the profiles."""
        costs = {
            dataclasses.replace(one.tile, fill_chunks=fill_chunks): cost
            for one in profiles
            for fill_chunks, cost in _in_chunks(one)
        }
        return cls(
            profiles=profiles,
            costs=costs,
            m=np.array([one.tile.tiles.tile_m for one in profiles]),
            k=np.array([one.tile.tiles.tile_k for one in profiles]),
            n=np.array([one.tile.tiles.tile_n for one in profiles]),
            whole_k=np.array([one.tile.whole_k for one in profiles], bool),
            fill_chunks=np.array([one.tile.fill_chunks for one in profiles]),
            first=np.array([one.cost.first for one in profiles]),
            step=np.array([one.cost.step for one in profiles]),
            end=np.array([one.cost.end for one in profiles]),
        )

    def least_us(self, spec: MatmulSpec, chip: Chip) -> float:
        """See `ProfiledChoices`."""
        machine = chip.machine
        each = float(np.min(self.end / (self.m * self.k * self.n)))
        compute_s = each * spec.m * spec.k * spec.n / chip.cores_per_device / machine.clock_hz
        return max(compute_s, spec.least_hbm_bytes / machine.hbm_bytes_per_s) * 1e6

    def promising(self, spec: MatmulSpec, chip: Chip) -> list[_Promise]:
        """Tiles that divide the sizes, in both orders, the least bound first."""
        machine = chip.machine
        fits = (spec.m % self.m == 0) & (spec.k % self.k == 0) & (spec.n % self.n == 0)
        if spec.m <= THIN_ROWS:  # more than one row of blocks would read all of rhs again
            fits &= self.m == spec.m
        (at,) = np.nonzero(fits & (self.whole_k == (self.k == spec.k)))
        tile_m, tile_k, tile_n = self.m[at], self.k[at], self.n[at]
        grid_m, grid_k, grid_n = spec.m // tile_m, spec.k // tile_k, spec.n // tile_n
        runs = -(-grid_m * grid_n // chip.cores_per_device)
        cycles = runs * ((grid_k - 1) * self.step[at] + self.end[at])
        cycles -= np.maximum(0.0, np.where(grid_k > 1, self.step[at], self.end[at]) - self.first[at])
        # Nothing is multiplied before a piece of either block is there, nor stored before it is multiplied.
        lhs_bytes, rhs_bytes = dtype_bytes(spec.dtype_lhs), dtype_bytes(spec.dtype_rhs)
        first_s = tile_k * (tile_m * lhs_bytes + tile_n * rhs_bytes) / self.fill_chunks[at] / machine.hbm_bytes_per_s
        ends_s = 2 * machine.dma_latency_cycles / machine.clock_hz
        found = []
        orders: tuple[GridOrder, ...] = ("m", "n")
        for grid_order in orders:
            inner, outermost = (grid_n, grid_m) if grid_order == "m" else (grid_m, grid_n)
            kept = np.where(grid_k > 1, inner, 1)
            streamed = np.where((grid_k > 1) | (inner > 1), outermost, 1)
            lhs_reads, rhs_reads = (kept, streamed) if grid_order == "m" else (streamed, kept)
            moved = lhs_reads * spec.lhs_bytes + rhs_reads * spec.rhs_bytes + spec.out_bytes
            copies_s = moved / machine.hbm_bytes_per_s
            least_us = (np.maximum(cycles / machine.clock_hz + first_s, copies_s) + ends_s) * 1e6
            # In the other order nothing changes where there is one row or one column of blocks.
            differs = np.ones(len(at), bool) if grid_order == "m" else (grid_m > 1) & (grid_n > 1)
            found += [
                _Promise(float(least_us[row]), self.profiles[at[row]], grid_order) for row in np.nonzero(differs)[0]
            ]
        return sorted(found, key=lambda one: one.least_us)
