"""The op of dense products."""

from __future__ import annotations

from dataclasses import replace

from systolic.chips import Chip
from systolic.cost import (
    Kind,
    TimedConfig,
    estimated_config,
    least_time_us,
    profiled_configs,
    ranked_configs,
    shipped_profiles,
    timed_config,
)
from systolic.ops.matmul.orientation import Orientation
from systolic.ops.op import Candidates, Layout, Op
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.schedule import (
    IllegalTilesError,
    KernelConfig,
    Tiles,
    hbm_traffic,
    kernel_buffers,
    total_bytes,
    vmem_limit,
)
from systolic.spec import MatmulSpec

# A profiled tile within this share of the least time is taken without running the model: that takes a
# second. The first blocks and the last store take some microseconds of any tile, of a small product less.
_NEAR = 1.04
_ENDS_US = 4.0
_ENDS_SHARE = 0.1
# Margin by which the model must beat a profile: the model may be off by this much, and its best of many is optimistic.
_DOUBT = 0.02
_PROFILED_FIRST = 2  # tiles that a search tries before all others
_PASSES = {"default": "one bfloat16 pass", "high": "three bfloat16 passes", "highest": "six bfloat16 passes"}


class MatmulOp(Op):
    name = "matmul"
    spec_type = MatmulSpec

    def words(self, spec: MatmulSpec) -> tuple[str, str, str]:
        batch = f"{spec.batch} × " if spec.batch > 1 else ""
        turned = " ".join(name for name in ("transpose_lhs", "transpose_rhs") if getattr(spec, name))
        return (
            f"{batch}{spec.m} × {spec.k} × {spec.n} (m k n)",
            f"{spec.dtype_lhs} × {spec.dtype_rhs} → {spec.dtype_out}",
            ", ".join(filter(None, (str(spec.epilogue), turned))),
        )

    def described(self, spec: MatmulSpec) -> MatmulSpec:
        """Return the spec without the operations of its epilogue."""
        return replace(spec, epilogue=replace(spec.epilogue, op_count=0, transcendentals=0))

    def computed(self, spec: MatmulSpec) -> MatmulSpec:
        """Return the product, turned as its matrices are stored."""
        return Orientation.of(spec).spec(spec)

    def counted(self, spec: MatmulSpec) -> MatmulSpec:
        if spec.is_only_cast and spec.lhs_prologue is None and spec.rhs_prologue is None:
            return spec
        from systolic.ops.matmul.named import counted  # needs JAX, which `import systolic` does not import

        return counted(spec)

    def plan(self, spec: MatmulSpec, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        """Return the best configuration by profiles of tiles, else by the model."""
        orientation = Orientation.of(spec)
        computed = orientation.spec(spec)
        if tiles is None:
            return _ranked(computed, chip)
        try:
            if isinstance(tiles, Tiles):
                ranked, considered = ranked_configs(computed, chip, orientation.tiles(tiles), count=1)
                return Candidates(configs=ranked, considered=considered)
            return Candidates(configs=[timed_config(computed, tiles, chip)], considered=1)
        except IllegalTilesError as error:
            raise orientation.refusal(error, of_kernel=isinstance(tiles, KernelConfig)) from None

    def search(self, computed: MatmulSpec, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        """Return the best profiled tiles first, with the model's time like all others.

        The profile's own time would not show where the model is wrong.
        """
        ranked = {candidate.config: candidate for candidate in ranked_configs(computed, chip)[0]}
        profiled = [candidate.config for candidate in profiled_configs(computed, chip, _PROFILED_FIRST).configs]
        first = [ranked.get(config) or estimated_config(computed, config, chip) for config in profiled]
        return first, [*ranked.values(), *(candidate for candidate in first if candidate.config not in ranked)]

    def judge(self, computed: MatmulSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
        return estimated_config(computed, config, chip)

    def least_time_us(self, computed: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
        return least_time_us(computed, config, chip)

    def layout(self, computed: MatmulSpec, config: KernelConfig, chip: Chip) -> Layout:
        kind = Kind.of(computed, chip)
        profiles = shipped_profiles(kind) if kind is not None else None
        return Layout(
            axes=("batch", "m", "n", "k"),
            grid=(computed.batch, *config.tiles.grid(computed)),
            hbm_bytes=hbm_traffic(computed, config).hbm_bytes,
            vmem_bytes=total_bytes(kernel_buffers(computed, config)),
            vmem_limit_bytes=vmem_limit(computed, config, chip),
            profiles=profiles.made_with if profiles is not None else None,
        )

    def remarks(self, spec: MatmulSpec, chip: Chip) -> list[str]:
        orientation = str(Orientation.of(spec))
        orientations = [orientation] if orientation else []
        if spec.dtype_multiplied == "float32":
            orientations.append(f"float32 as {_PASSES[spec.precision]}")
        if chip.cores_per_device > 1:
            orientations.append("both cores share the blocks of the output")
        return orientations

    def programs(self, spec: MatmulSpec, chip: Chip) -> Programs:
        from systolic.ops.matmul.programs import programs_of  # needs JAX

        return programs_of(spec, chip)

    def raced(self, spec: MatmulSpec, chip: Chip) -> RacedPrograms:
        from systolic.ops.matmul.programs import raced  # needs JAX

        return raced(spec, chip)


def _ranked(spec: MatmulSpec, chip: Chip) -> Candidates:
    """Return profiled tiles; if none of them is near the least time, the best by estimates too."""
    profiled = profiled_configs(spec, chip)
    best = profiled.configs
    near_us = profiled.least_us * _NEAR + min(_ENDS_US, profiled.least_us * _ENDS_SHARE)
    if best and best[0].modelled.time_us <= near_us:
        return Candidates(configs=best, considered=profiled.considered)
    modelled, considered = ranked_configs(spec, chip, count=1)
    considered += profiled.considered
    if best and best[0].modelled.time_us * (1 - _DOUBT) <= modelled[0].modelled.time_us:
        return Candidates(configs=[*best, *modelled], considered=considered)
    return Candidates(configs=modelled, considered=considered)
