"""The ops of grouped products and of their gradient."""

from __future__ import annotations

from typing import Any

from systolic.chips import Chip
from systolic.cost import TimedConfig
from systolic.ops.engine.listed import ListedOp
from systolic.ops.grouped.cost import gradient_configs, product_configs, timed
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.ops.op import Layout
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.schedule import KernelConfig, total_bytes
from systolic.schedule.vmem import vmem_limit
from systolic.spec import Spec


class _Grouped(ListedOp):
    def judge(self, computed: Any, config: KernelConfig, chip: Chip) -> TimedConfig:
        return timed(computed, config, chip)

    def remarks(self, spec: Any, chip: Chip) -> list[str]:
        shared = ["both cores share the columns"] if chip.cores_per_device > 1 else []
        return [f"for groups of about {spec.rows_per_group} rows", *shared]


class GroupedOp(_Grouped):
    name = "grouped"
    spec_type = GroupedSpec

    def words(self, spec: GroupedSpec) -> tuple[str, str, str]:
        gated = f"times a second product{', side by side' if spec.side_by_side else ''}" if spec.gated else ""
        fused = ("bias" if spec.bias else "", spec.activation, gated, "row scale" if spec.row_scale else "")
        added = "residual" if spec.residual else ""
        turned = "transpose_rhs" if spec.transpose_rhs else ""
        target = "into an existing array" if spec.existing_out else ""
        codes = f" × {spec.dtype_rhs}" if spec.dtype_rhs else ""
        shared = f", a scale for {spec.rhs_block} × {spec.scale_columns}" if spec.rhs_block else ""
        return (
            f"{spec.m} × {spec.k} × {spec.n} (m k n) in {spec.groups} groups",
            f"{spec.dtype}{codes}{shared} → {spec.dtype_out}",
            ", ".join(filter(None, (*fused, added, turned, target))),
        )

    def configs(self, spec: GroupedSpec, chip: Chip) -> list[TimedConfig]:
        return product_configs(spec, chip)

    def layout(self, computed: GroupedSpec, config: KernelConfig, chip: Chip) -> Layout:
        schedule = GroupedSchedule.of(computed, config, chip)
        panels = -(-computed.m // schedule.panel)
        return _layout(computed, schedule, chip, panels=panels, n=schedule.grid_n)

    def programs(self, spec: GroupedSpec, chip: Chip) -> Programs:
        from systolic.ops.grouped.programs import programs_of  # needs JAX

        return programs_of(spec, chip)

    def raced(self, spec: GroupedSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.grouped.programs import raced  # needs JAX

        return raced(spec, chip)


class GroupedGradientOp(_Grouped):
    name = "grouped-gradient"
    spec_type = GroupedGradientSpec

    def words(self, spec: GroupedGradientSpec) -> tuple[str, str, str]:
        sizes = f"{spec.m} × {spec.k} × {spec.n} (m k n) in {spec.groups} groups, gradient of the matrices"
        return sizes, f"{spec.dtype} → {spec.dtype_out}", ""

    def configs(self, spec: GroupedGradientSpec, chip: Chip) -> list[TimedConfig]:
        return gradient_configs(spec, chip)

    def layout(self, computed: GroupedGradientSpec, config: KernelConfig, chip: Chip) -> Layout:
        schedule = GradientSchedule.of(computed, config, chip)
        return _layout(computed, schedule, chip, groups=computed.groups, k=schedule.grid_k, n=schedule.grid_n)

    def programs(self, spec: GroupedGradientSpec, chip: Chip) -> Programs:
        from systolic.ops.grouped.programs import gradient_programs_of  # needs JAX

        return gradient_programs_of(spec, chip)

    def raced(self, spec: GroupedGradientSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.grouped.programs import gradient_raced  # needs JAX

        return gradient_raced(spec, chip)


def _layout(computed: Spec, schedule: GroupedSchedule | GradientSchedule, chip: Chip, **grid: int) -> Layout:
    return Layout(
        axes=tuple(grid),
        grid=tuple(grid.values()),
        hbm_bytes=computed.least_hbm_bytes,
        vmem_bytes=total_bytes(schedule.buffers),
        vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
    )
