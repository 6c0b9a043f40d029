"""The op of block-sparse products."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.cost import TimedConfig
from systolic.ops.engine.listed import ListedOp
from systolic.ops.op import Layout
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.ops.sparse.call_lists import calls_of, one_call
from systolic.ops.sparse.cost import bytes_between, chunks_of, configs, timed
from systolic.ops.sparse.schedule import ProductSchedule, SampledSchedule, schedule_of
from systolic.ops.sparse.spec import SparseSpec
from systolic.schedule import KernelConfig, total_bytes
from systolic.schedule.vmem import vmem_limit
from systolic.spec import dtype_bytes


class SparseOp(ListedOp):
    name = "sparse"
    spec_type = SparseSpec

    def words(self, spec: SparseSpec) -> tuple[str, str, str]:
        sparse_side = {"dsd": "lhs", "dds": "rhs", "sdd": "result"}[spec.kind]
        blocks = (
            f"{spec.blocks} blocks of {spec.block_rows} × {spec.block_columns} ({spec.density:.0%}) of {sparse_side}"
        )
        fused = (
            "bias" if spec.bias else "",
            spec.activation,
            "transpose_rhs" if spec.transpose_rhs else "",
            "dense result" if spec.dense_out else "",
            "within diagonals" if spec.diagonals else "",
        )
        return (
            f"{spec.m} × {spec.k} × {spec.n} (m k n), {blocks}",
            f"{spec.dtype} → {spec.dtype_out}",
            ", ".join(filter(None, fused)),
        )

    def configs(self, spec: SparseSpec, chip: Chip) -> list[TimedConfig]:
        return configs(spec, chip)

    def judge(self, computed: SparseSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
        return timed(computed, config, chip)

    def layout(self, computed: SparseSpec, config: KernelConfig, chip: Chip) -> Layout:
        call = one_call(computed, chip)
        schedule = schedule_of(call, config, chip)
        at_once = schedule.slots if isinstance(schedule, SampledSchedule) else schedule.capacity
        chunks = calls_of(computed, call) * chunks_of(call, at_once)
        grid = schedule.grid if isinstance(schedule, ProductSchedule) else schedule.grid_k
        again = (chunks - 1 if grid > 1 else 0) * dtype_bytes(computed.dtype)
        panels = computed.m * computed.k if computed.kind == "dds" else computed.k * computed.n
        return Layout(
            axes=("chunks", "panels"),
            grid=(chunks, grid),
            hbm_bytes=computed.least_hbm_bytes + again * panels + bytes_between(computed, call),
            vmem_bytes=total_bytes(schedule.buffers),
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
        )

    def remarks(self, spec: SparseSpec, chip: Chip) -> list[str]:
        """Describe the blocks for which tiles are chosen, and the number of the kernel's calls."""
        calls = calls_of(spec, one_call(spec, chip))
        cut = [f"{calls} calls, for SMEM does not hold where all blocks are"] if calls > 1 else []
        shared = ["both cores share the blocks of the output"] if chip.cores_per_device > 1 else []
        return [f"for {spec.blocks} blocks, about as many in every line", *cut, *shared]

    def programs(self, spec: SparseSpec, chip: Chip) -> Programs:
        from systolic.ops.sparse.programs import programs_of  # needs JAX

        return programs_of(spec, chip)

    def raced(self, spec: SparseSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.sparse.programs import raced  # needs JAX

        return raced(spec, chip)
