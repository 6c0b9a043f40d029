"""The op, which needs no JAX but for its programs."""

from __future__ import annotations

from expert.spec import ExpertSpec
from systolic.chips import Chip
from systolic.cost import ModelledTime, TimedConfig
from systolic.ops.op import Candidates, Layout, Op
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, Violation
from systolic.spec import SliceMesh, dtype_bytes


class ExpertOp(Op):
    name = "expert"
    spec_type = ExpertSpec

    def words(self, spec: ExpertSpec) -> tuple[str, str, str]:
        return f"{spec.m} × {spec.k} × {spec.n} (m k n) of {spec.experts} experts", spec.dtype, "relu, gate"

    def mesh(self, spec: ExpertSpec) -> SliceMesh | None:
        return spec.slice_mesh

    def plan(self, spec: ExpertSpec, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        if isinstance(tiles, Tiles):
            tiles = _config(tiles)
        configs = self.search(spec, chip)[1] if tiles is None else [self.judge(spec, tiles, chip)]
        return Candidates(configs=configs, considered=len(configs))

    def search(self, computed: ExpertSpec, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        tiles = (Tiles(tile_m=tile_m, tile_k=computed.k, tile_n=min(256, computed.columns)) for tile_m in (128, 256))
        timed = [self.judge(computed, _config(tile), chip) for tile in tiles if computed.m % tile.tile_m == 0]
        return [], sorted(timed, key=lambda choice: choice.modelled.time_us)

    def judge(self, computed: ExpertSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
        tiles = config.tiles
        if computed.m % tiles.tile_m or computed.columns % tiles.tile_n or tiles.tile_k != computed.k:
            broken = Violation(rule="tiles", value=str(tiles), limit="cut m and n evenly", fix="use 128 or 256")
            raise IllegalTilesError(str(config), [broken])
        layout = self.layout(computed, config, chip)
        copy_us = layout.hbm_bytes / chip.hbm_bytes_per_s * 1e6
        compute_us = computed.flops / chip.peak_ops_per_s(computed.dtype) * 1e6
        send_us = layout.link_bytes / chip.links.bytes_per_s * 1e6 if layout.link_bytes and chip.links else 0.0
        return TimedConfig(
            config=config,
            modelled=ModelledTime(
                time_us=copy_us + compute_us + send_us, compute_us=compute_us, copy_us=copy_us, ramp_us=0.0
            ),
            provenance="modelled",
        )

    def least_time_us(self, computed: ExpertSpec, config: KernelConfig, chip: Chip) -> float:
        return computed.least_hbm_bytes / chip.hbm_bytes_per_s * 1e6

    def layout(self, computed: ExpertSpec, config: KernelConfig, chip: Chip) -> Layout:
        item, tiles = dtype_bytes(computed.dtype), config.tiles
        blocks = tiles.tile_m * computed.k + 2 * computed.k * tiles.tile_n + tiles.tile_m * tiles.tile_n
        rows = computed.m // tiles.tile_m
        read = computed.m * computed.k + rows * 2 * computed.k * computed.columns
        return Layout(
            axes=("m", "n"),
            grid=(rows, computed.columns // tiles.tile_n),
            hbm_bytes=item * (read + computed.m * computed.n),
            vmem_bytes=2 * item * blocks,
            vmem_limit_bytes=chip.scoped_vmem_bytes,
            link_bytes=computed.link_bytes,
        )

    def remarks(self, spec: ExpertSpec, chip: Chip) -> list[str]:
        return ["two products of the same rows"]

    def programs(self, spec: ExpertSpec, chip: Chip) -> Programs:
        from expert.programs import programs_of  # needs JAX

        return programs_of(spec)

    def raced(self, spec: ExpertSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.engine.programs import raced_kernel  # needs JAX

        return raced_kernel(self.programs(spec, chip), spec, chip)


def _config(tiles: Tiles) -> KernelConfig:
    return KernelConfig(tiles=tiles, subtile_m=tiles.tile_m, subtile_n=tiles.tile_n)
