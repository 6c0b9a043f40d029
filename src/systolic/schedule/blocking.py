"""How a blocked kernel goes through a product: its tiles, the pieces of code within one, the order, the buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.problem import Extra, MatmulProblem, Side, dtype_bytes
from systolic.schedule.buffers import VmemBuffer
from systolic.schedule.tiles import Tiles, TilesError

Outer = Literal["m", "n"]
Dimension = Literal["m", "k", "n"]

SIDES: tuple[Literal["lhs"], Literal["rhs"]] = ("lhs", "rhs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Tiles, and what a kernel does with them.

    A step multiplies one tile in slices of `slice_m` rows and `slice_n` columns of the output: one slice is one piece
    of straight code, run in a loop. Long slices waste less of the matrix units; short ones compile to less code.

    Raises:
      TilesError: a slice does not divide its tile, or a number of buffers that no pipeline has.
    """

    tiles: Tiles
    slice_m: int
    slice_n: int
    buffers: int = 2  # of each operand; two are Pallas' own pipeline, three `emit_pipeline`
    outer: Outer = "m"  # the dimension of the output whose blocks change last
    pieces: int = 0  # in which the first step's blocks arrive, along k; 0: in the pipelines of Pallas, which has none

    def __post_init__(self) -> None:
        for name, tile in (("slice_m", self.tiles.tile_m), ("slice_n", self.tiles.tile_n)):
            value = getattr(self, name)
            if value < 1 or tile % value:
                raise TilesError(f"{name}={value} does not divide a tile of {tile}; use a divisor of {tile}")
        if self.buffers not in (2, 3):
            raise TilesError(f"buffers={self.buffers}: a pipeline has 2 or 3")
        if self.pieces < 0 or (self.pieces and self.tiles.tile_k % self.pieces):
            raise TilesError(f"pieces={self.pieces} does not divide tile_k={self.tiles.tile_k}")

    @property
    def slices(self) -> int:
        """Slices of one step."""
        return (self.tiles.tile_m // self.slice_m) * (self.tiles.tile_n // self.slice_n)

    def __str__(self) -> str:
        parts = [f"tiles {self.tiles}"]
        if self.slices > 1:
            parts.append(f"slices {self.slice_m}×{self.slice_n}")
        parts.append(f"{self.buffers} buffers, {self.outer} outermost")
        if self.pieces:
            parts.append(f"first step in {self.pieces}")
        return ", ".join(parts)


def block_shape(problem: MatmulProblem, tiles: Tiles, side: Side) -> tuple[int, int]:
    """Rows and columns of one block of an operand, as it is stored, or of the output."""
    if side == "lhs":
        return (tiles.tile_k, tiles.tile_m) if problem.transpose_lhs else (tiles.tile_m, tiles.tile_k)
    if side == "rhs":
        return (tiles.tile_n, tiles.tile_k) if problem.transpose_rhs else (tiles.tile_k, tiles.tile_n)
    return tiles.tile_m, tiles.tile_n


def dimensions(problem: MatmulProblem, side: Side) -> tuple[Dimension, Dimension]:
    """Along what the rows and the columns of an operand lie, as it is stored, or of the output."""
    if side == "lhs":
        return ("k", "m") if problem.transpose_lhs else ("m", "k")
    if side == "rhs":
        return ("n", "k") if problem.transpose_rhs else ("k", "n")
    return "m", "n"


def is_resident(problem: MatmulProblem, tiles: Tiles, extra: Extra) -> bool:
    """Whether an extra array stays in VMEM as a whole: a row, which costs a step more to copy by blocks than it saves.

    Only where blocks cut it evenly: nothing may be read past its end.
    """
    if extra.rows:
        return False
    dimension = dimensions(problem, extra.beside)[1]
    return not extra.columns or getattr(problem, dimension) % getattr(tiles, f"tile_{dimension}") == 0


def extra_block(problem: MatmulProblem, tiles: Tiles, extra: Extra) -> tuple[int, int]:
    """Rows and columns of one block of an extra array."""
    if is_resident(problem, tiles, extra):
        return 1, getattr(problem, dimensions(problem, extra.beside)[1]) if extra.columns else 1
    rows, columns = block_shape(problem, tiles, extra.beside)
    return (rows if extra.rows else 1), (columns if extra.columns else 1)


# Vector operations an element up to which a function of an operand is computed for each slice anew: beside products
# they take no time, while to rewrite the block first takes some two cycles a register.
_CHEAP_OPERAND_OPS = 12


def is_made(problem: MatmulProblem, side: Literal["lhs", "rhs"]) -> bool:
    """Whether something else is multiplied than what is stored: an operand has a function, or is cast or split."""
    dtype = problem.dtype_lhs if side == "lhs" else problem.dtype_rhs
    fn = problem.fusion.lhs_fn if side == "lhs" else problem.fusion.rhs_fn
    return fn is not None or is_split(problem) or dtype != problem.dtype_multiplied


def is_staged(problem: MatmulProblem, tiles: Tiles, side: Literal["lhs", "rhs"]) -> bool:
    """Whether an operand's block is rewritten in VMEM before it is multiplied, instead of on the way.

    So it is where its function is dear, and where the block ends past k: what the function makes of that has to be
    overwritten with zeros.
    """
    fn = problem.fusion.lhs_fn if side == "lhs" else problem.fusion.rhs_fn
    return fn is not None and (fn.ops > _CHEAP_OPERAND_OPS or problem.k % tiles.tile_k > 0)


def is_split(problem: MatmulProblem) -> bool:
    """Whether float32 operands are multiplied as two bfloat16 parts each (`Precision.HIGH`)."""
    return problem.precision == "high" and problem.dtype_multiplied == "float32"


def made_bytes(problem: MatmulProblem, blocking: Blocking) -> int:
    """VMEM in which the compiler keeps what a slice multiplies of operands that are made on the way.

    Of halves also the sums of two of their three products.
    """
    found = 2 * blocking.slice_m * blocking.slice_n * dtype_bytes("float32") if is_split(problem) else 0
    for side, across in zip(SIDES, (blocking.slice_m, blocking.slice_n), strict=True):
        if is_made(problem, side) and not is_staged(problem, blocking.tiles, side):
            halves = (2, "bfloat16") if is_split(problem) else (1, problem.dtype_multiplied)
            found += across * blocking.tiles.tile_k * halves[0] * dtype_bytes(halves[1])
    return found


def can_stream(problem: MatmulProblem, tiles: Tiles) -> bool:
    """Whether `kernels.streamed` takes these tiles: one matrix, cut evenly, no operand rewritten first."""
    even = all(getattr(problem, letter) % getattr(tiles, f"tile_{letter}") == 0 for letter in "mkn")
    return even and problem.batch == 1 and not any(is_staged(problem, tiles, side) for side in SIDES)


def has_accumulator(problem: MatmulProblem, blocking: Blocking) -> bool:
    """Whether the sum over k takes several steps, or the first step several pieces, and so a buffer of its own."""
    return problem.k > blocking.tiles.tile_k or blocking.pieces > 1


# Vector operations an element up to which the epilogue runs in every step over k, though only the last one's counts.
_CHEAP_EPILOGUE_OPS = 1


def has_last_step(problem: MatmulProblem, tiles: Tiles) -> bool:
    """Whether the last step over k has code of its own, because an epilogue in every step would cost too much."""
    return problem.k > tiles.tile_k and problem.fusion.epilogue_ops > _CHEAP_EPILOGUE_OPS


_STRIP_ROWS = 128


def strip_rows(problem: MatmulProblem, blocking: Blocking) -> int:
    """Rows of a slice that the first step finishes at once, where its products came in pieces and k is one block.

    No product hides that epilogue: of a dear one strips are as fast as a slice, and less code.
    """
    dear = problem.fusion.epilogue_ops > _CHEAP_EPILOGUE_OPS
    return _STRIP_ROWS if dear and blocking.slice_m % _STRIP_ROWS == 0 else blocking.slice_m


def blocked_buffers(problem: MatmulProblem, blocking: Blocking) -> tuple[VmemBuffer, ...]:
    """VMEM of the blocked kernel: what its pipeline allocates for blocks, and its scratch by name."""
    tiles = blocking.tiles
    copies = blocking.buffers
    found = [
        VmemBuffer(name="lhs", shape=block_shape(problem, tiles, "lhs"), dtype=problem.dtype_lhs, copies=copies),
        VmemBuffer(name="rhs", shape=block_shape(problem, tiles, "rhs"), dtype=problem.dtype_rhs, copies=copies),
    ]
    for number, extra in enumerate(problem.fusion.extras):
        shape = extra_block(problem, tiles, extra)
        # A row takes the eight of a register, a column its 128 lanes.
        padded = (-(-shape[0] // 8) * 8, -(-shape[1] // 128) * 128)
        found.append(VmemBuffer(name=f"extra {number}", shape=padded, dtype=extra.dtype, copies=copies))
    for dtype in (problem.dtype_out, *problem.fusion.more_outputs):
        found.append(VmemBuffer(name="out", shape=(tiles.tile_m, tiles.tile_n), dtype=dtype, copies=2))
    return (*found, *scratch_buffers(problem, blocking))


def scratch_buffers(problem: MatmulProblem, blocking: Blocking) -> tuple[VmemBuffer, ...]:
    """The part of `blocked_buffers` that the kernel asks for itself, in the order in which it takes it."""
    found = []
    if has_accumulator(problem, blocking):
        shape = (blocking.tiles.tile_m, blocking.tiles.tile_n)
        found.append(VmemBuffer(name="acc", shape=shape, dtype=problem.dtype_accumulator, copies=1))
    for side in SIDES:
        if is_staged(problem, blocking.tiles, side):
            shape = block_shape(problem, blocking.tiles, side)
            dtype = "bfloat16" if is_split(problem) else problem.dtype_multiplied
            parts = ("high", "low") if is_split(problem) else ("staged",)
            found += [VmemBuffer(name=f"{side} {part}", shape=shape, dtype=dtype, copies=1) for part in parts]
    return tuple(found)
