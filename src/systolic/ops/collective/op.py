"""The ops of products across chips: rows gathered or sums scattered, and gathered weights.

A spec is of one device's part, and has the slice and the mesh, so that trials of different slices are kept apart.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from systolic.chips import Chip
from systolic.cost import ModelledTime, TimedConfig, machine_roofline
from systolic.ops.collective.configs import config_of, ring_schedule_of, weight_schedule_of
from systolic.ops.collective.cost import START_US, legal_schedules, schedule_us, vmem_bytes, vmem_limit_bytes
from systolic.ops.collective.schedule import WAYS, RingSchedule
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.weight_cost import (
    legal_weight_schedules,
    weight_schedule_us,
    weight_vmem_bytes,
    weight_vmem_limit_bytes,
)
from systolic.ops.collective.weight_schedule import WeightSchedule
from systolic.ops.engine.listed import ListedOp
from systolic.ops.op import Layout
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.schedule import KernelConfig
from systolic.spec import SliceMesh


class _AcrossChips(ListedOp):
    @abstractmethod
    def _timed(self, spec: Any, schedule: Any, chip: Chip) -> TimedConfig:
        """Return the configuration of a schedule with its time."""

    def words(self, spec: RingSizes | WeightSizes) -> tuple[str, str, str]:
        return str(spec), spec.dtype, ""

    def mesh(self, spec: RingSizes | WeightSizes) -> SliceMesh | None:
        return spec.slice_mesh

    def least_time_us(self, computed: RingSizes | WeightSizes, config: KernelConfig, chip: Chip) -> float:
        return max(machine_roofline(computed, chip).least_us, _sent_us(computed, chip))

    def programs(self, spec: RingSizes | WeightSizes, chip: Chip) -> Programs:
        from systolic.ops.collective.programs import programs_of  # needs JAX

        return programs_of(spec, chip)

    def raced(self, spec: RingSizes | WeightSizes, chip: Chip) -> RacedPrograms:
        from systolic.ops.engine.programs import raced_kernel  # needs JAX

        return raced_kernel(self.programs(spec, chip), spec, chip)


class RingProductOp(_AcrossChips):
    """`systolic.all_gather_matmul` and `systolic.matmul_reduce_scatter`."""

    name = "ring product"
    spec_type = RingSizes

    def configs(self, spec: RingSizes, chip: Chip) -> list[TimedConfig]:
        return [self._timed(spec, schedule, chip) for schedule in legal_schedules(spec, chip)]

    def judge(self, computed: RingSizes, config: KernelConfig, chip: Chip) -> TimedConfig:
        return self._timed(computed, ring_schedule_of(computed, config, chip), chip)

    def layout(self, computed: RingSizes, config: KernelConfig, chip: Chip) -> Layout:
        schedule = ring_schedule_of(computed, config, chip)
        return Layout(
            axes=("rows", "columns"),
            grid=(schedule.parts * schedule.groups, schedule.blocks),
            hbm_bytes=computed.least_hbm_bytes - computed.weight_bytes + _weight_bytes(computed, schedule),
            vmem_bytes=vmem_bytes(schedule, computed),
            vmem_limit_bytes=vmem_limit_bytes(schedule, computed, chip),
            link_bytes=_link_bytes(computed),
        )

    def _timed(self, spec: RingSizes, schedule: RingSchedule, chip: Chip) -> TimedConfig:
        return _timed_config(spec, schedule, schedule_us(schedule, spec, chip), _weight_bytes(spec, schedule), chip)


def _weight_bytes(spec: RingSizes, schedule: RingSchedule) -> int:
    """Return the bytes of weights from HBM: cores that share rows copy all of them."""
    return schedule.row_cores * spec.weight_bytes


class GatheredWeightOp(_AcrossChips):
    """A product whose weight is gathered, as FSDP cuts it."""

    name = "gathered weight"
    spec_type = WeightSizes

    def configs(self, spec: WeightSizes, chip: Chip) -> list[TimedConfig]:
        timed = {}
        for schedule in legal_weight_schedules(spec, chip):
            # The same configuration with pieces in HBM follows, and is no candidate.
            candidate = self._timed(spec, schedule, chip)
            timed.setdefault(candidate.config, candidate)
        return list(timed.values())

    def judge(self, computed: WeightSizes, config: KernelConfig, chip: Chip) -> TimedConfig:
        return self._timed(computed, weight_schedule_of(computed, config, chip), chip)

    def layout(self, computed: WeightSizes, config: KernelConfig, chip: Chip) -> Layout:
        schedule = weight_schedule_of(computed, config, chip)
        return Layout(
            axes=("columns", "rows"),
            grid=(schedule.products, schedule.blocks),
            hbm_bytes=computed.least_hbm_bytes + (WAYS * computed.weight_bytes if schedule.in_hbm else 0),
            vmem_bytes=weight_vmem_bytes(schedule, computed),
            vmem_limit_bytes=weight_vmem_limit_bytes(schedule, computed, chip),
            link_bytes=_link_bytes(computed),
        )

    def _timed(self, spec: WeightSizes, schedule: WeightSchedule, chip: Chip) -> TimedConfig:
        hbm_bytes = spec.weight_bytes if schedule.in_hbm else spec.chunk_bytes
        return _timed_config(spec, schedule, weight_schedule_us(schedule, spec, chip), hbm_bytes, chip)


def _timed_config(
    spec: RingSizes | WeightSizes,
    schedule: RingSchedule | WeightSchedule,
    time_us: float,
    weight_bytes: float,
    chip: Chip,
) -> TimedConfig:
    peak_ops_per_s = chip.peak_ops_per_s(spec.dtype_multiplied) * schedule.cores / chip.cores_per_device
    modelled = ModelledTime(
        time_us=time_us,
        compute_us=spec.flops * spec.passes / peak_ops_per_s * 1e6,
        copy_us=weight_bytes / chip.hbm_bytes_per_s * 1e6,
        ramp_us=START_US,
        sent_us=_sent_us(spec, chip),
    )
    return TimedConfig(config=config_of(schedule, spec), modelled=modelled, provenance="modelled")


def _sent_us(spec: RingSizes | WeightSizes, chip: Chip) -> float:
    return 0.0 if chip.links is None else spec.sent_bytes / chip.links.bytes_per_s * 1e6


def _link_bytes(spec: RingSizes | WeightSizes) -> int:
    """Return the bytes that a device sends, both ways."""
    return round(WAYS * spec.sent_bytes)
