"""How a blocked kernel goes through a product: its tiles, the pieces of code within one, the order, the buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.schedule.buffers import VmemBuffer
from systolic.schedule.tiles import Tiles, TilesError
from systolic.spec import Extra, MatmulSpec, Side, dtype_bytes

GridOrder = Literal["m", "n"]
Dimension = Literal["m", "k", "n"]

SIDES: tuple[Literal["lhs"], Literal["rhs"]] = ("lhs", "rhs")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Tiles, and what a kernel does with them.

    A step multiplies one tile in subtiles of `subtile_m` rows and `subtile_n` columns of the output: a subtile is one
    piece of straight code, run in a loop. Long subtiles waste less of the matrix units; short ones are less code.

    Raises:
      TilesError: a slice does not divide its tile, or a number of buffers that no pipeline has.
    """

    tiles: Tiles
    subtile_m: int
    subtile_n: int
    buffers: int = 2  # of each operand; two are Pallas' own pipeline, three `emit_pipeline`
    grid_order: GridOrder = "m"  # the dimension of the output whose blocks change last
    fill_chunks: int = (
        0  # in which the first step's blocks arrive, along k; 0: in the pipelines of Pallas, which has none
    )

    def __post_init__(self) -> None:
        for name, tile in (("subtile_m", self.tiles.tile_m), ("subtile_n", self.tiles.tile_n)):
            value = getattr(self, name)
            if value < 1 or tile % value:
                raise TilesError(f"{name}={value} does not divide a tile of {tile}; use a divisor of {tile}")
        if self.buffers not in (2, 3):
            raise TilesError(f"buffers={self.buffers}: a pipeline has 2 or 3")
        if self.fill_chunks < 0 or (self.fill_chunks and self.tiles.tile_k % self.fill_chunks):
            raise TilesError(f"pieces={self.fill_chunks} does not divide tile_k={self.tiles.tile_k}")

    @property
    def subtiles(self) -> int:
        """Slices of one step."""
        return (self.tiles.tile_m // self.subtile_m) * (self.tiles.tile_n // self.subtile_n)

    def __str__(self) -> str:
        parts = [f"tiles {self.tiles}"]
        if self.subtiles > 1:
            parts.append(f"slices {self.subtile_m}×{self.subtile_n}")
        parts.append(f"{self.buffers} buffers, {self.grid_order} outermost")
        if self.fill_chunks:
            parts.append(f"first step in {self.fill_chunks}")
        return ", ".join(parts)


def block_shape(spec: MatmulSpec, tiles: Tiles, side: Side) -> tuple[int, int]:
    """Rows and columns of one block of an operand, as it is stored, or of the output."""
    if side == "lhs":
        return (tiles.tile_k, tiles.tile_m) if spec.transpose_lhs else (tiles.tile_m, tiles.tile_k)
    if side == "rhs":
        return (tiles.tile_n, tiles.tile_k) if spec.transpose_rhs else (tiles.tile_k, tiles.tile_n)
    return tiles.tile_m, tiles.tile_n


def dimensions(spec: MatmulSpec, side: Side) -> tuple[Dimension, Dimension]:
    """Along what the rows and the columns of an operand lie, as it is stored, or of the output."""
    if side == "lhs":
        return ("k", "m") if spec.transpose_lhs else ("m", "k")
    if side == "rhs":
        return ("n", "k") if spec.transpose_rhs else ("k", "n")
    return "m", "n"


def is_resident(spec: MatmulSpec, tiles: Tiles, extra: Extra) -> bool:
    """Whether an extra array stays in VMEM as a whole: a row, which costs a step more to copy by blocks than it saves.

    Only where blocks cut it evenly: nothing may be read past its end.
    """
    if extra.rows:
        return False
    dimension = dimensions(spec, extra.beside)[1]
    return not extra.columns or getattr(spec, dimension) % getattr(tiles, f"tile_{dimension}") == 0


def extra_block(spec: MatmulSpec, tiles: Tiles, extra: Extra) -> tuple[int, int]:
    """Rows and columns of one block of an extra array."""
    if is_resident(spec, tiles, extra):
        return 1, getattr(spec, dimensions(spec, extra.beside)[1]) if extra.columns else 1
    rows, columns = block_shape(spec, tiles, extra.beside)
    return (rows if extra.rows else 1), (columns if extra.columns else 1)


# Vector operations an element up to which a function of an operand is computed for each slice anew: beside products
# they take no time, while to rewrite the block first takes some two cycles a register.
_CHEAP_OPERAND_OPS = 12


def is_made(spec: MatmulSpec, side: Literal["lhs", "rhs"]) -> bool:
    """Whether something else is multiplied than what is stored: an operand has a function, or is cast or split."""
    dtype = spec.dtype_lhs if side == "lhs" else spec.dtype_rhs
    fn = spec.fusion.lhs_fn if side == "lhs" else spec.fusion.rhs_fn
    return fn is not None or is_split(spec) or dtype != spec.dtype_multiplied


def is_staged(spec: MatmulSpec, tiles: Tiles, side: Literal["lhs", "rhs"]) -> bool:
    """Whether an operand's block is rewritten in VMEM before it is multiplied, instead of on the way.

    So it is where its function is dear, and where the block ends past k: what the function makes of that has to be
    overwritten with zeros.
    """
    fn = spec.fusion.lhs_fn if side == "lhs" else spec.fusion.rhs_fn
    return fn is not None and (fn.ops > _CHEAP_OPERAND_OPS or spec.k % tiles.tile_k > 0)


def is_split(spec: MatmulSpec) -> bool:
    """Whether float32 operands are multiplied as two bfloat16 parts each (`Precision.HIGH`)."""
    return spec.precision == "high" and spec.dtype_multiplied == "float32"


def made_bytes(spec: MatmulSpec, config: KernelConfig) -> int:
    """VMEM in which the compiler keeps what a slice multiplies of operands that are made on the way.

    Of halves also the sums of two of their three products.
    """
    found = 2 * config.subtile_m * config.subtile_n * dtype_bytes("float32") if is_split(spec) else 0
    for side, across in zip(SIDES, (config.subtile_m, config.subtile_n), strict=True):
        if is_made(spec, side) and not is_staged(spec, config.tiles, side):
            halves = (2, "bfloat16") if is_split(spec) else (1, spec.dtype_multiplied)
            found += across * config.tiles.tile_k * halves[0] * dtype_bytes(halves[1])
    return found


def can_stream(spec: MatmulSpec, tiles: Tiles) -> bool:
    """Whether `kernels.streamed` takes these tiles: one matrix, cut evenly, no operand rewritten first."""
    even = all(getattr(spec, letter) % getattr(tiles, f"tile_{letter}") == 0 for letter in "mkn")
    return even and spec.batch == 1 and not any(is_staged(spec, tiles, side) for side in SIDES)


def has_accumulator(spec: MatmulSpec, config: KernelConfig) -> bool:
    """Whether the sum over k takes several steps, or the first step several pieces, and so a buffer of its own."""
    return spec.k > config.tiles.tile_k or config.fill_chunks > 1


# Vector operations an element up to which the epilogue runs in every step over k, though only the last one's counts.
_CHEAP_EPILOGUE_OPS = 1


def has_last_step(spec: MatmulSpec, tiles: Tiles) -> bool:
    """Whether the last step over k has code of its own, because an epilogue in every step would cost too much."""
    return spec.k > tiles.tile_k and spec.fusion.epilogue_ops > _CHEAP_EPILOGUE_OPS


_STRIP_ROWS = 128


def strip_rows(spec: MatmulSpec, config: KernelConfig) -> int:
    """Rows of a slice that the first step finishes at once, where its products came in pieces and k is one block.

    No product hides that epilogue: of a dear one strips are as fast as a slice, and less code.
    """
    dear = spec.fusion.epilogue_ops > _CHEAP_EPILOGUE_OPS
    return _STRIP_ROWS if dear and config.subtile_m % _STRIP_ROWS == 0 else config.subtile_m


def blocked_buffers(spec: MatmulSpec, config: KernelConfig) -> tuple[VmemBuffer, ...]:
    """VMEM of the blocked kernel: what its pipeline allocates for blocks, and its scratch by name."""
    tiles = config.tiles
    copies = config.buffers
    found = [
        VmemBuffer(name="lhs", shape=block_shape(spec, tiles, "lhs"), dtype=spec.dtype_lhs, copies=copies),
        VmemBuffer(name="rhs", shape=block_shape(spec, tiles, "rhs"), dtype=spec.dtype_rhs, copies=copies),
    ]
    for number, extra in enumerate(spec.fusion.extras):
        shape = extra_block(spec, tiles, extra)
        # A row takes the eight of a register, a column its 128 lanes.
        padded = (-(-shape[0] // 8) * 8, -(-shape[1] // 128) * 128)
        found.append(VmemBuffer(name=f"extra {number}", shape=padded, dtype=extra.dtype, copies=copies))
    for dtype in (spec.dtype_out, *spec.fusion.more_outputs):
        found.append(VmemBuffer(name="out", shape=(tiles.tile_m, tiles.tile_n), dtype=dtype, copies=2))
    return (*found, *scratch_buffers(spec, config))


def scratch_buffers(spec: MatmulSpec, config: KernelConfig) -> tuple[VmemBuffer, ...]:
    """The part of `blocked_buffers` that the kernel asks for itself, in the order in which it takes it."""
    found = []
    if has_accumulator(spec, config):
        shape = (config.tiles.tile_m, config.tiles.tile_n)
        found.append(VmemBuffer(name="acc", shape=shape, dtype=spec.dtype_accumulator, copies=1))
    for side in SIDES:
        if is_staged(spec, config.tiles, side):
            shape = block_shape(spec, config.tiles, side)
            dtype = "bfloat16" if is_split(spec) else spec.dtype_multiplied
            parts = ("high", "low") if is_split(spec) else ("staged",)
            found += [VmemBuffer(name=f"{side} {part}", shape=shape, dtype=dtype, copies=1) for part in parts]
    return tuple(found)
