"""The base of ops that list all their legal configurations, each with a time by arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from systolic.chips import Chip
from systolic.cost import TimedConfig, machine_roofline
from systolic.ops.op import Candidates, Op
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, Violation


class ListedOp(Op):
    @abstractmethod
    def configs(self, spec: Any, chip: Chip) -> list[TimedConfig]:
        """Return all legal configurations, the fastest first; raise IllegalTilesError if there is none."""

    def plan(self, spec: Any, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        if isinstance(tiles, KernelConfig):
            return Candidates(configs=[self.judge(spec, tiles, chip)], considered=1)
        legal = self.configs(spec, chip)
        candidates = [candidate for candidate in legal if tiles is None or candidate.config.tiles == tiles]
        if not candidates:
            legal_tiles = ", ".join(sorted({str(candidate.config.tiles) for candidate in legal})[:8])
            value, limit = f"tiles {tiles}", "are none of those that are tried"
            violation = Violation(rule="tiles", value=value, limit=limit, fix=f"use one of {legal_tiles}, …")
            raise IllegalTilesError(f"tiles {tiles}", [violation])
        return Candidates(configs=candidates, considered=len(legal))

    def search(self, computed: Any, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        return [], self.configs(computed, chip)

    def least_time_us(self, computed: Any, config: KernelConfig, chip: Chip) -> float:
        return machine_roofline(computed, chip).least_us
