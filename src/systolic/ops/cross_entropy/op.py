"""The op of a linear layer's softmax loss."""

from __future__ import annotations

from collections.abc import Iterable

from systolic.chips import Chip
from systolic.cost import TimedConfig
from systolic.ops.cross_entropy.cost import configs, timed
from systolic.ops.cross_entropy.schedule import LossSchedule
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.ops.engine.listed import ListedOp
from systolic.ops.op import Layout
from systolic.ops.op_programs import Peer, Programs, RacedPrograms
from systolic.schedule import KernelConfig, total_bytes
from systolic.schedule.vmem import vmem_limit


class CrossEntropyOp(ListedOp):
    """`systolic.linear_cross_entropy`: the kernel of the loss, or the kernel of its gradients."""

    name = "cross-entropy"
    spec_type = CrossEntropySpec

    def words(self, spec: CrossEntropySpec) -> tuple[str, str, str]:
        kind = "softmax loss" if spec.kind == "forward" else "gradients of a softmax loss"
        fused = (kind, "soft cap" if spec.soft_cap else "", "sum of logits" if spec.total else "")
        fused += ("logits kept" if spec.keep_logits else "",)
        return f"{spec.m} × {spec.k} × {spec.n} (m k n)", spec.dtype, ", ".join(filter(None, fused))

    def configs(self, spec: CrossEntropySpec, chip: Chip) -> list[TimedConfig]:
        return configs(spec, chip)

    def judge(self, computed: CrossEntropySpec, config: KernelConfig, chip: Chip) -> TimedConfig:
        return timed(computed, config, chip)

    def layout(self, computed: CrossEntropySpec, config: KernelConfig, chip: Chip) -> Layout:
        schedule = LossSchedule.of(computed, config, chip)
        return Layout(
            axes=("m", "n"),
            grid=schedule.grid,
            hbm_bytes=schedule.hbm_bytes,
            vmem_bytes=total_bytes(schedule.buffers),
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
        )

    def remarks(self, spec: CrossEntropySpec, chip: Chip) -> list[str]:
        if chip.cores_per_device == 1:
            return []
        sums = ", and XLA adds their gradients of w" if spec.kind == "gradients" else ""
        return [f"both cores share the rows{sums}"]

    def programs(self, spec: CrossEntropySpec, chip: Chip) -> Programs:
        from systolic.ops.cross_entropy.programs import programs_of  # needs JAX

        return programs_of(spec, chip)

    def raced(self, spec: CrossEntropySpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.cross_entropy.programs import raced  # needs JAX

        return raced(spec, chip)

    def peers(self, spec: CrossEntropySpec, chip: Chip) -> Iterable[Peer]:
        from systolic.ops.cross_entropy.peers import peers  # needs JAX

        return peers(spec)
