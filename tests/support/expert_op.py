"""A second op, made as CONTRIBUTING says: one expert's gated product, which needs no change in systolic.

    out[m, n] = relu(lhs @ gate[expert]) · (lhs @ up[expert])

It has what the matmul has not: two right-hand sides, and an operand that is prefetched.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic.chips import Chip
from systolic.cost import ModelledTime, TimedConfig
from systolic.ops.op import Candidates, Layout, RacedPrograms
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """Sizes and the dtype of everything but the number of the expert."""

    m: int
    k: int
    n: int
    experts: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * 2 * self.m * self.k * self.n

    @property
    def passes(self) -> int:
        return 1

    @property
    def dtype_multiplied(self) -> str:
        return self.dtype

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        return self.dtype

    @property
    def least_hbm_bytes(self) -> int:
        return jnp.dtype(self.dtype).itemsize * (self.m * self.k + 2 * self.k * self.n + self.m * self.n)


class ExpertOp:
    name = "expert"
    spec_type = ExpertSpec

    def words(self, spec: ExpertSpec) -> tuple[str, str, str]:
        return f"{spec.m} × {spec.k} × {spec.n} (m k n) of {spec.experts} experts", spec.dtype, "relu, gate"

    def described(self, spec: ExpertSpec) -> ExpertSpec:
        return spec

    def computed(self, spec: ExpertSpec) -> ExpertSpec:
        return spec

    def plan(self, spec: ExpertSpec, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        if isinstance(tiles, Tiles):
            tiles = _config(tiles)
        configs = self.search(spec, chip)[1] if tiles is None else [self.judge(spec, tiles, chip)]
        return Candidates(configs=configs, considered=len(configs))

    def search(self, computed: ExpertSpec, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        tiles = (Tiles(tile_m=tile_m, tile_k=computed.k, tile_n=256) for tile_m in (128, 256))
        found = [self.judge(computed, _config(one), chip) for one in tiles]
        return [], sorted(found, key=lambda choice: choice.modelled.time_us)

    def judge(self, computed: ExpertSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
        tiles = config.tiles
        if computed.m % tiles.tile_m or computed.n % tiles.tile_n or tiles.tile_k != computed.k:
            broken = Violation(rule="tiles", value=str(tiles), limit="cut m and n evenly", fix="use 128 or 256")
            raise IllegalTilesError(str(config), [broken])
        copy_us = self.layout(computed, config, chip).hbm_bytes / chip.hbm_bytes_per_s * 1e6
        compute_us = computed.flops / chip.peak_ops_per_s(computed.dtype) * 1e6
        time_us = copy_us + compute_us
        return TimedConfig(
            config=config,
            modelled=ModelledTime(time_us=time_us, compute_us=compute_us, copy_us=copy_us, ramp_us=0.0),
            provenance="modelled",
        )

    def least_time_us(self, computed: ExpertSpec, config: KernelConfig, chip: Chip) -> float:
        return computed.least_hbm_bytes / chip.hbm_bytes_per_s * 1e6

    def layout(self, computed: ExpertSpec, config: KernelConfig, chip: Chip) -> Layout:
        item, tiles = jnp.dtype(computed.dtype).itemsize, config.tiles
        blocks = tiles.tile_m * computed.k + 2 * computed.k * tiles.tile_n + tiles.tile_m * tiles.tile_n
        rows = computed.m // tiles.tile_m
        read = computed.m * computed.k + rows * 2 * computed.k * computed.n
        return Layout(
            axes=("m", "n"),
            grid=(rows, computed.n // tiles.tile_n),
            hbm_bytes=item * (read + computed.m * computed.n),
            vmem_bytes=2 * item * blocks,
            vmem_limit_bytes=chip.scoped_vmem_bytes,
        )

    def remarks(self, spec: ExpertSpec, chip: Chip) -> list[str]:
        return ["two products of the same rows"]

    def programs(self, spec: ExpertSpec, chip: Chip) -> ExpertPrograms:
        return ExpertPrograms(computed=spec)

    def raced(self, spec: ExpertSpec, chip: Chip) -> RacedPrograms:
        programs, config = self.programs(spec, chip), systolic.plan(spec, chip).config
        return RacedPrograms(spec=spec, arguments=programs.arguments, ours=programs.kernel(config), xla=programs.xla())


def _config(tiles: Tiles) -> KernelConfig:
    return KernelConfig(tiles=tiles, subtile_m=tiles.tile_m, subtile_n=tiles.tile_n)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPrograms:
    computed: ExpertSpec

    @property
    def arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        spec = self.computed
        weights = jax.ShapeDtypeStruct((spec.experts, spec.k, spec.n), jnp.dtype(spec.dtype))
        rows = jax.ShapeDtypeStruct((spec.m, spec.k), jnp.dtype(spec.dtype))
        return jax.ShapeDtypeStruct((1,), jnp.int32), rows, weights, weights

    def kernel(self, config: KernelConfig) -> Any:
        return functools.partial(by_pallas, tiles=config.tiles)

    def xla(self) -> Any:
        return by_xla


def by_xla(expert: Array, lhs: Array, gate: Array, up: Array) -> Array:
    gated, raised = (jnp.matmul(lhs, one[expert[0]], preferred_element_type=jnp.float32) for one in (gate, up))
    return (jax.nn.relu(gated) * raised).astype(lhs.dtype)


def by_pallas(expert: Array, lhs: Array, gate: Array, up: Array, *, tiles: Tiles, interpret: Any = False) -> Array:
    (m, k), n = lhs.shape, gate.shape[-1]

    def kernel(_: Any, lhs_vmem: Any, gate_vmem: Any, up_vmem: Any, out_vmem: Any) -> None:
        gated, raised = (
            jnp.dot(lhs_vmem[...], one[...], preferred_element_type=jnp.float32) for one in (gate_vmem, up_vmem)
        )
        out_vmem[...] = (jax.nn.relu(gated) * raised).astype(out_vmem.dtype)

    weights = pl.BlockSpec((None, k, tiles.tile_n), lambda i, j, expert_smem: (expert_smem[0], 0, j))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(m // tiles.tile_m, n // tiles.tile_n),
            in_specs=[pl.BlockSpec((tiles.tile_m, k), lambda i, j, _: (i, 0)), weights, weights],
            out_specs=pl.BlockSpec((tiles.tile_m, tiles.tile_n), lambda i, j, _: (i, j)),
        ),
        interpret=interpret,
    )(expert, lhs, gate, up)
