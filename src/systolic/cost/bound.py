"""A lower bound of a configuration's time, from the time of its steps and of its copies alone.

The pipeline model times configurations in the order of their bounds, until no bound is left below the best time. The
arithmetic works on arrays too, where many configurations are looked at together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from systolic.chips import Chip
from systolic.cost.copies import CopyCycles, store_cycles
from systolic.cost.estimate import peak_cost
from systolic.cost.profile import StepCost
from systolic.schedule.blocks import operand_blocks
from systolic.schedule.config import KernelConfig
from systolic.schedule.grid import GridSchedule
from systolic.spec import MatmulSpec


def least_us(output_tiles: Any, steps_k: Any, cost: StepCost, first_s: Any, copies_s: Any, chip: Chip) -> Any:
    """Return the bound of a number of output tiles on one core, each in `steps_k` steps; arrays for many at a time."""
    machine = chip.machine
    cycles = output_tiles * ((steps_k - 1) * cost.step + cost.end)
    cycles += cost.first - np.where(steps_k > 1, cost.step, cost.end)
    latency_s = machine.dma_latency_cycles / machine.clock_hz
    # Nothing is multiplied before the first blocks have arrived, nor stored before it is multiplied.
    steps_s = cycles / machine.clock_hz + first_s + latency_s
    return (np.maximum(steps_s, copies_s) + latency_s) * 1e6


def config_bound_us(spec: MatmulSpec, config: KernelConfig, chip: Chip, cost: StepCost) -> float:
    (schedule, cores), hz = GridSchedule.of(spec, config).shared_by(chip.cores_per_device), chip.machine.clock_hz
    first_cycles = copied_cycles = 0.0
    blocks = operand_blocks(spec, config.tiles)
    for number, block in enumerate(blocks.present()):
        cycles = CopyCycles.of(block, config, chip)
        first_cycles += cycles.chunk if number < len(blocks.factors) else 0.0
        copied_cycles += cycles.block * schedule.fetches(block.loops)
    copied_cycles += schedule.output_tiles * store_cycles(spec, config, chip)
    copies_s = cores * copied_cycles / hz
    return float(least_us(schedule.output_tiles, schedule.steps_k, cost, first_cycles / hz, copies_s, chip))


def least_time_us(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """Return a time that no kernel of this configuration can beat: its products at peak, or its copies alone."""
    return config_bound_us(spec, config, chip, peak_cost(spec, config, chip))
