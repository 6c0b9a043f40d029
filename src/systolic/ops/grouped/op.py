"""What planner, store and tuner know of grouped products and their gradient; none of it needs JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.cost import TimedConfig
from systolic.ops.engine.listed import ListedOp
from systolic.ops.grouped.cost import gradient_configs, product_configs, timed
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.ops.op import Layout, RacedPrograms
from systolic.schedule import KernelConfig, total_bytes
from systolic.schedule.vmem import vmem_limit

if TYPE_CHECKING:
    from systolic.ops.grouped.programs import GradientPrograms, GroupedPrograms


class _Grouped(ListedOp):
    """What both ops have in common."""

    def judge(self, computed: Any, config: KernelConfig, chip: Chip) -> TimedConfig:
        """A configuration with the model's time."""
        return timed(computed, config, chip)

    def remarks(self, spec: Any, chip: Chip) -> list[str]:
        """For which sizes of groups the tiles are."""
        shared = ["both cores share the columns"] if chip.cores_per_device > 1 else []
        return [f"for groups of about {spec.rows_per_group} rows", *shared]


class GroupedOp(_Grouped):
    """`systolic.grouped_matmul`; see `systolic.ops.op.Op`."""

    name = "grouped"
    spec_type = GroupedSpec

    def words(self, spec: GroupedSpec) -> tuple[str, str, str]:
        """Sizes, dtypes and what is fused."""
        gated = f"times a second product{', side by side' if spec.side_by_side else ''}" if spec.gated else ""
        fused = ("bias" if spec.bias else "", spec.activation, gated, "row scale" if spec.row_scale else "")
        added = "residual" if spec.residual else ""
        turned = "transpose_rhs" if spec.transpose_rhs else ""
        kept = "into an existing array" if spec.existing_out else ""
        return (
            f"{spec.m} × {spec.k} × {spec.n} (m k n) in {spec.groups} groups",
            f"{spec.dtype} → {spec.dtype_out}",
            ", ".join(filter(None, (*fused, added, turned, kept))),
        )

    def configs(self, spec: GroupedSpec, chip: Chip) -> list[TimedConfig]:
        """All that are legal."""
        return product_configs(spec, chip)

    def layout(self, computed: GroupedSpec, config: KernelConfig, chip: Chip) -> Layout:
        """Panels of rows, and tiles of columns."""
        schedule = GroupedSchedule.of(computed, config, chip)
        panels = -(-computed.m // schedule.panel)
        return Layout(
            axes=("panels", "n"),
            grid=(panels, schedule.grid_n),
            hbm_bytes=computed.least_hbm_bytes,
            vmem_bytes=total_bytes(schedule.buffers),
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
        )

    def programs(self, spec: GroupedSpec, chip: Chip) -> GroupedPrograms:
        """Built from the description."""
        from systolic.ops.grouped.programs import GroupedPrograms  # needs JAX

        return GroupedPrograms(computed=spec, chip=chip)

    def raced(self, spec: GroupedSpec, chip: Chip) -> RacedPrograms:
        """`systolic.grouped_matmul` itself, beside plain JAX."""
        from systolic.ops.grouped.programs import raced  # likewise

        return raced(spec, chip)


class GroupedGradientOp(_Grouped):
    """The gradient of `systolic.grouped_matmul` in its matrices; see `systolic.ops.op.Op`."""

    name = "grouped-gradient"
    spec_type = GroupedGradientSpec

    def words(self, spec: GroupedGradientSpec) -> tuple[str, str, str]:
        """Sizes and dtypes."""
        sizes = f"{spec.m} × {spec.k} × {spec.n} (m k n) in {spec.groups} groups, gradient of the matrices"
        return sizes, f"{spec.dtype} → {spec.dtype_out}", ""

    def configs(self, spec: GroupedGradientSpec, chip: Chip) -> list[TimedConfig]:
        """All that are legal."""
        return gradient_configs(spec, chip)

    def layout(self, computed: GroupedGradientSpec, config: KernelConfig, chip: Chip) -> Layout:
        """Groups, and tiles of each one's result."""
        schedule = GradientSchedule.of(computed, config, chip)
        return Layout(
            axes=("groups", "k", "n"),
            grid=(computed.groups, schedule.grid_k, schedule.grid_n),
            hbm_bytes=computed.least_hbm_bytes,
            vmem_bytes=total_bytes(schedule.buffers),
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
        )

    def programs(self, spec: GroupedGradientSpec, chip: Chip) -> GradientPrograms:
        """Built from the description."""
        from systolic.ops.grouped.programs import GradientPrograms  # needs JAX

        return GradientPrograms(computed=spec, chip=chip)

    def raced(self, spec: GroupedGradientSpec, chip: Chip) -> RacedPrograms:
        """The kernel that the backward pass calls, beside XLA's."""
        from systolic.ops.grouped.programs import gradient_raced  # likewise

        return gradient_raced(spec, chip)
