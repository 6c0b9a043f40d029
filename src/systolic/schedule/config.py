"""The configuration of a kernel: its tiles, the subtiles within one, the order of the grid, the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.schedule.blocks import FACTORS
from systolic.schedule.tiles import Tiles, TilesError
from systolic.spec import MatmulSpec
from systolic.support.choices import unknown_name

Pipeline = Literal["auto", "emit", "manual"]
GridOrder = Literal["m", "n"]

# The name and the numbers of stages of each pipeline.
_KERNELS: dict[Pipeline, str] = {"auto": "auto pipeline", "emit": "emit_pipeline", "manual": "manual DMA"}
_STAGES: dict[Pipeline, tuple[int, ...]] = {"auto": (2,), "emit": (3,), "manual": (2, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Tiles, subtiles, the order of the grid and the pipeline of a kernel.

    A step multiplies one tile in subtiles of `subtile_m` rows and `subtile_n` columns of the output: a subtile is one
    stretch of straight code, run in a loop. Long subtiles waste less of the matrix units; short ones are less code.

    Raises:
      TilesError: a subtile does not divide its tile, the pipeline has no such number of stages, or it has fill chunks
        that it cannot have.
    """

    tiles: Tiles
    subtile_m: int
    subtile_n: int
    pipeline: Pipeline = "auto"  # `pallas_call`'s grid, `emit_pipeline`, or copies that the kernel itself starts
    num_stages: int = 2  # blocks of each operand in VMEM
    grid_order: GridOrder = "m"  # the dimension of the output whose blocks change last
    fill_chunks: int = 1  # chunks along k in which the first step's blocks arrive

    def __post_init__(self) -> None:
        for name, tile in (("subtile_m", self.tiles.tile_m), ("subtile_n", self.tiles.tile_n)):
            value = getattr(self, name)
            if value < 1 or tile % value:
                raise TilesError(f"{name}={value} does not divide a tile of {tile}; use a divisor of {tile}")
        if self.pipeline not in _STAGES:
            raise TilesError(unknown_name("pipeline=", self.pipeline, _STAGES))
        if self.num_stages not in _STAGES[self.pipeline]:
            stages = " or ".join(map(str, _STAGES[self.pipeline]))
            raise TilesError(f"num_stages={self.num_stages}: pipeline={self.pipeline!r} has {stages}; use {stages}")
        if self.fill_chunks < 1 or self.tiles.tile_k % self.fill_chunks:
            tile_k = self.tiles.tile_k
            raise TilesError(f"fill_chunks={self.fill_chunks} does not divide {tile_k=}; use a divisor of {tile_k}")
        if self.fill_chunks > 1 and self.pipeline != "manual":
            raise TilesError(
                f"fill_chunks={self.fill_chunks}: pipeline={self.pipeline!r} copies whole blocks; use fill_chunks=1, "
                'or pipeline="manual"'
            )

    @property
    def subtiles(self) -> int:
        return (self.tiles.tile_m // self.subtile_m) * (self.tiles.tile_n // self.subtile_n)

    @property
    def kernel(self) -> str:
        return _KERNELS[self.pipeline]

    def __str__(self) -> str:
        parts = [f"tiles {self.tiles}"]
        if self.subtiles > 1:
            parts.append(f"subtiles {self.subtile_m}×{self.subtile_n}")
        parts += [self.kernel, f"{self.num_stages} stages", f"grid order {self.grid_order}"]
        if self.fill_chunks > 1:
            parts.append(f"{self.fill_chunks} fill chunks")
        return ", ".join(parts)


# Vector operations an element up to which a function of an operand is computed again for each subtile: during products
# they take no time, while rewriting the block first takes some two cycles a register.
_CHEAP_OPERAND_OPS = 12


def is_made(spec: MatmulSpec, side: Literal["lhs", "rhs"]) -> bool:
    """True if the multiplied values differ from the stored ones: an operand has a function, or is cast or split."""
    return spec.prologue(side) is not None or is_split(spec) or spec.dtype(side) != spec.dtype_multiplied


def made_of(spec: MatmulSpec, side: Literal["lhs", "rhs"]) -> int:
    """Return the number of factors of an operand, all of them made if one is; the other right-hand side counts too."""
    return spec.products if side == "rhs" or spec.pairing == "added" else 1


def is_staged(spec: MatmulSpec, tiles: Tiles, side: Literal["lhs", "rhs"]) -> bool:
    """True if an operand's block is rewritten in VMEM before the products, instead of subtile by subtile.

    Staging is used when the function is expensive, or when the last block extends past k and the function's values of
    the padding must be overwritten with zeros.
    """
    prologue = spec.prologue(side)
    return prologue is not None and (prologue.op_count > _CHEAP_OPERAND_OPS or spec.k % tiles.tile_k > 0)


def is_split(spec: MatmulSpec) -> bool:
    """True if float32 operands are multiplied as two bfloat16 parts each (`Precision.HIGH`)."""
    return spec.precision == "high" and spec.dtype_multiplied == "float32"


def can_run_manually(spec: MatmulSpec, tiles: Tiles) -> bool:
    """True if `kernels.manual_dma` takes these tiles: one matrix, cut evenly, no operand rewritten first."""
    even = all(getattr(spec, letter) % getattr(tiles, f"tile_{letter}") == 0 for letter in "mkn")
    return even and spec.batch == 1 and not any(is_staged(spec, tiles, side) for side in FACTORS)


# Any multiple of the first number has a tile that divides it; up to the second, a tile takes the whole side.
_DIVISIBLE, _SHORT = 256, 2048


def can_join_outputs(spec: MatmulSpec, cores: int) -> bool:
    """True if `kernels.manual_dma` takes a product in some tiles; it alone writes two outputs into one array."""
    even = spec.m % _DIVISIBLE == 0 and spec.n % _DIVISIBLE == 0 and (spec.k % _DIVISIBLE == 0 or spec.k <= _SHORT)
    return even and cores == 1 and spec.batch == 1


def has_accumulator(spec: MatmulSpec, config: KernelConfig) -> bool:
    """True if the sum over k needs its own buffer: it takes several steps, or the first step takes several chunks."""
    return spec.k > config.tiles.tile_k or config.fill_chunks > 1


# Vector operations an element up to which the epilogue runs in every step over k, though only the last one's counts.
_CHEAP_EPILOGUE_OPS = 1


def has_last_step(spec: MatmulSpec, tiles: Tiles) -> bool:
    """True if the last step over k has code of its own, because an epilogue in every step would cost too much."""
    return spec.k > tiles.tile_k and spec.epilogue_op_count > _CHEAP_EPILOGUE_OPS


_CHUNK_ROWS = 128


def row_chunk(spec: MatmulSpec, config: KernelConfig) -> int:
    """Return the rows of a subtile that the first step finishes at once if products came in chunks and k is one block.

    No product hides that epilogue: an expensive one takes as long for chunks of rows as for a subtile, in less code.
    """
    expensive = spec.epilogue_op_count > _CHEAP_EPILOGUE_OPS
    return _CHUNK_ROWS if expensive and config.subtile_m % _CHUNK_ROWS == 0 else config.subtile_m
