"""What ops have in common whose legal configurations are all listed, each with a time by arithmetic."""

from __future__ import annotations

from typing import Any

from systolic.chips import Chip
from systolic.cost import TimedConfig, machine_roofline
from systolic.ops.op import Candidates
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, Violation


class ListedOp:
    """Base class of ops that list all their legal configurations: the rest of `Op` from two methods."""

    def configs(self, spec: Any, chip: Chip) -> list[TimedConfig]:
        """All legal configurations, the fastest first.

        Raises:
          IllegalTilesError: there is none.
        """
        raise NotImplementedError

    def judge(self, computed: Any, config: KernelConfig, chip: Chip) -> TimedConfig:
        """A configuration with the model's time.

        Raises:
          IllegalTilesError: it breaks rules.
        """
        raise NotImplementedError

    def described(self, spec: Any) -> Any:
        """All of it."""
        return spec

    def computed(self, spec: Any) -> Any:
        """What is asked for."""
        return spec

    def plan(self, spec: Any, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        """The fastest by arithmetic; of these tiles only, if they are given."""
        if isinstance(tiles, KernelConfig):
            return Candidates(configs=[self.judge(spec, tiles, chip)], considered=1)
        found = self.configs(spec, chip)
        chosen = [one for one in found if tiles is None or one.config.tiles == tiles]
        if not chosen:
            known = ", ".join(sorted({str(one.config.tiles) for one in found})[:8])
            value, limit = f"tiles {tiles}", "are none of those that are tried"
            violation = Violation(rule="tiles", value=value, limit=limit, fix=f"use one of {known}, …")
            raise IllegalTilesError(f"tiles {tiles}", [violation])
        return Candidates(configs=chosen, considered=len(found))

    def search(self, computed: Any, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        """All that are legal."""
        return [], self.configs(computed, chip)

    def least_time_us(self, computed: Any, config: KernelConfig, chip: Chip) -> float:
        """Products or copies alone, at the clock and bandwidth of the chip's model."""
        return machine_roofline(computed, chip).least_us / chip.cores_per_device
