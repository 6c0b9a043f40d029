"""The op of products with quantized weights."""

from __future__ import annotations

from collections.abc import Iterable

from systolic.chips import Chip
from systolic.cost import TimedConfig, dtype_on, machine_roofline
from systolic.cost.roofline import mxu_rows_per_cycle
from systolic.ops.engine.listed import ListedOp
from systolic.ops.op import Layout
from systolic.ops.op_programs import Peer, Programs, RacedPrograms
from systolic.ops.quantized.cost import product_configs, timed
from systolic.ops.quantized.route_cycles import rows_per_cycle
from systolic.ops.quantized.routes import route_of
from systolic.ops.quantized.schedule import QuantizedSchedule
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import KernelConfig, total_bytes


class QuantizedOp(ListedOp):
    name = "quantized"
    spec_type = QuantizedSpec

    def words(self, spec: QuantizedSpec) -> tuple[str, str, str]:
        block = "a scale a column" if spec.blocks == 1 else f"a scale for {spec.block} of k"
        rows = spec.dtype_lhs
        if spec.quantize_lhs:
            rows = f"{rows} (quantized to {spec.quantize_lhs} by rows)"
        elif spec.lhs_blocks:
            rows = f"{rows} ({'a scale a row' if spec.lhs_blocks == 1 else f'a scale for {spec.lhs_block} of k'})"
        parts = {"bias": spec.bias, spec.activation: True, "times a second product": spec.gated}
        parts |= {"residual": spec.residual, "a scale of the result": spec.out_scale}
        return (
            f"{spec.m} × {spec.k} × {spec.n} (m k n)",
            f"{rows} × {spec.dtype_rhs} ({block}) → {spec.dtype_out}",
            ", ".join(name for name, is_joined in parts.items() if is_joined and name),
        )

    def configs(self, spec: QuantizedSpec, chip: Chip) -> list[TimedConfig]:
        return product_configs(spec, chip)

    def judge(self, computed: QuantizedSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
        return timed(computed, config, chip)

    def least_time_us(self, computed: QuantizedSpec, config: KernelConfig, chip: Chip) -> float:
        """Return the time of products at the rate of the route, or of copies alone, by the chip's model."""
        roofline, route = machine_roofline(computed, chip), route_of(computed, config.subtile_m, chip)
        faster = rows_per_cycle(route, chip) / mxu_rows_per_cycle(dtype_on(computed, chip), chip)
        return max(roofline.hbm_us, roofline.mxu_us / max(faster, 1.0)) / chip.cores_per_device

    def layout(self, computed: QuantizedSpec, config: KernelConfig, chip: Chip) -> Layout:
        schedule = QuantizedSchedule.of(computed, config, chip)
        again = (schedule.grid_m - 1) * computed.rhs_bytes
        return Layout(
            axes=("m", "n", "k"),
            grid=(schedule.grid_m, schedule.grid_n, schedule.grid_k),
            hbm_bytes=computed.least_hbm_bytes + again,
            vmem_bytes=total_bytes(schedule.buffers),
            vmem_limit_bytes=schedule.vmem_limit_bytes,
        )

    def remarks(self, spec: QuantizedSpec, chip: Chip) -> list[str]:
        result = [str(route_of(spec, product_configs(spec, chip)[0].config.subtile_m, chip))]
        if chip.cores_per_device > 1:
            result.append("one of the device's cores works")
        if not chip.unpacks_bytes:
            result.append("unpacking takes so long that XLA multiplies unless implementation='pallas' is asked for")
        return result

    def programs(self, spec: QuantizedSpec, chip: Chip) -> Programs:
        from systolic.ops.quantized.programs import programs_of  # needs JAX

        return programs_of(spec, chip)

    def raced(self, spec: QuantizedSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.quantized.programs import raced  # needs JAX

        return raced(spec, chip)

    def peers(self, spec: QuantizedSpec, chip: Chip) -> Iterable[Peer]:
        from systolic.ops.quantized.peers import peers  # needs JAX

        return peers(spec, chip)
