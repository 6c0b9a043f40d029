"""Every rule that makes tiles legal, each stated once. A check returns all violations, not only the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.schedule.buffers import VmemBuffer, kernel_buffers, made_bytes, total_bytes
from systolic.schedule.config import KernelConfig, can_join_outputs, can_run_manually
from systolic.schedule.tiles import Tiles, TilesError
from systolic.schedule.vmem import MIB, CompilerNeed
from systolic.spec import EXACT_INT32_PRODUCTS, MatmulSpec, dtype_bytes

LANES = 128  # columns of a vector register
REGISTER_BYTES = 4096  # of a vector register: eight rows of 32-bit lanes
# The compiler itself needs VMEM. Seen: 16 → 18.5, 24 → 28.5, 28 → 35.1, 64 → 73 MiB; for the six passes of
# float32 at highest precision, whose parts it keeps, 15.5 → 24.6.
_NEED = CompilerNeed(factor=1.26, kept_bytes=1.26 * 2 * MIB, asked_bytes=2 * MIB)
_NEED_HIGHEST = CompilerNeed(factor=1.65, kept_bytes=1.65 * 2 * MIB, asked_bytes=2 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule: its name, the value, the limit, and a fix."""

    rule: str
    value: str
    limit: str
    fix: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.value}, {self.limit}; {self.fix}"


class IllegalTilesError(TilesError):
    """A kernel was asked for the impossible; `violations` and the message hold every reason."""

    def __init__(self, kernel: str, violations: Sequence[Violation]) -> None:
        super().__init__(f"{kernel}: " + " | ".join(map(str, violations)))
        self.kernel = kernel
        self.violations = tuple(violations)

    def __reduce__(self) -> tuple[type[IllegalTilesError], tuple[str, tuple[Violation, ...]]]:
        # Kernels are traced in worker processes too, and an exception is rebuilt from the arguments of its class.
        return type(self), (self.kernel, self.violations)


def sublane_multiple(dtype: str) -> int:
    """Return the number that the rows of a block of `dtype` must be a multiple of: 8, or 32 for 8-bit types.

    Source: compiled with libtpu 0.0.42.1; a block of 8 int8 rows is refused with E2002.
    """
    return 32 if dtype_bytes(dtype) == 1 else 8


def dtype_violations(spec: MatmulSpec, chip: Chip) -> list[Violation]:
    return [
        Violation(
            rule="dtype",
            value=f"{chip.name} has no matrix multiplication of {dtype}",
            limit=f"it takes {', '.join(chip.dtypes)}",
            fix="use one of these, or another chip",
        )
        for dtype in dict.fromkeys((spec.dtype_lhs, spec.dtype_rhs))
        if dtype not in chip.dtypes
    ]


def above_matrix(letter: str, tile: int, size: int, limit: str) -> Violation:
    """Return the violation of a tile that is larger than its matrix; `limit` names the consequence."""
    return Violation(
        rule="tile-within-matrix",
        value=f"tile_{letter}={tile} is above {letter}={size}",
        limit=limit,
        fix=f"use tile_{letter}≤{size}",
    )


def misaligned(letter: str, tile: int, multiple: int, blocks: str, instead: int) -> Violation:
    """Return the violation of a tile that is neither its whole dimension nor a multiple of the registers."""
    return Violation(
        rule="tile-alignment",
        value=f"tile_{letter}={tile} is not a multiple of {multiple}",
        limit=f"{blocks} need multiples of {multiple} along {letter}, or all of it",
        fix=f"use tile_{letter}={instead}",
    )


def indivisible(letter: str, size: int, tile: int, limit: str = "", fix: str = "") -> Violation:
    """Return the violation of a tile that does not divide its dimension; `limit` says why it must."""
    return Violation(
        rule="tile-divides",
        value=f"{letter}={size} is not a multiple of tile_{letter}={tile}",
        limit=limit or f"tiles cut {letter} evenly",
        fix=fix or f"use a divisor of {size}",
    )


def inexact_sums(tile_k: int, fix: str = "") -> Violation:
    """Return the violation of a sum of integers over more of k than an int32 holds; `fix` continues after the tile."""
    return Violation(
        rule="exact-sums",
        value=f"tile_k={tile_k}",
        limit=f"an int32 holds {EXACT_INT32_PRODUCTS} products of int8 for certain",
        fix=f"use tile_k≤{EXACT_INT32_PRODUCTS}{fix}",
    )


def require_none(config: KernelConfig, violations: Sequence[Violation]) -> None:
    """Raise IllegalTilesError with each violation if a configuration breaks rules."""
    if violations:
        raise IllegalTilesError(str(config), violations)


def size_violations(spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
    """Check that tiles cut the matrices evenly.

    A tile above the matrix makes `m // tile_m` zero: a grid of no steps, which compiles, runs nothing and returns
    garbage. A tile that does not divide drops the rest silently.
    """
    result = []
    for letter in "mkn":
        size, tile = getattr(spec, letter), getattr(tiles, f"tile_{letter}")
        if tile > size:
            result.append(above_matrix(letter, tile, size, "the grid would have no steps"))
        elif size % tile:
            limit = f"the last {size % tile} of {letter} would be lost"
            fix = f"use a divisor of {size} or pad {letter} to {size + tile - size % tile}"
            result.append(indivisible(letter, size, tile, limit, fix))
    return result


def alignment(spec: MatmulSpec) -> dict[str, int]:
    """Return the multiples that tiles along m, k and n must be of, unless a tile is the whole dimension."""
    lhs_rows, rhs_rows = sublane_multiple(spec.dtype_lhs), sublane_multiple(spec.dtype_rhs)
    out_rows = max(map(sublane_multiple, spec.dtypes_out))
    return {
        "m": max(LANES if spec.transpose_lhs else lhs_rows, out_rows),
        "k": max(lhs_rows if spec.transpose_lhs else LANES, LANES if spec.transpose_rhs else rhs_rows),
        "n": LANES,
    }


def legal_sides(size: int, multiple: int) -> list[int]:
    """Return the tile sizes that cut a dimension of `size` evenly and aligned, smallest first; the last is `size`."""
    if size % multiple:
        return [size]
    count = size // multiple
    divisors = [divisor for divisor in range(1, math.isqrt(count) + 1) if count % divisor == 0]
    return sorted({size, *(multiple * part for divisor in divisors for part in (divisor, count // divisor))})


def alignment_violations(spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
    """Check that block dimensions are either the whole dimension or a multiple of the register tile."""
    result = []
    for letter, multiple in alignment(spec).items():
        size, tile = getattr(spec, letter), getattr(tiles, f"tile_{letter}")
        if tile != size and tile % multiple:
            nearest = min(legal_sides(size, multiple), key=lambda side: abs(side - tile))
            result.append(misaligned(letter, tile, multiple, f"blocks of {spec.dtype_lhs}", nearest))
    return result


def vmem_violations(buffers: Sequence[VmemBuffer], limit_bytes: int) -> list[Violation]:
    """Check that the buffers fit. The compiler needs more in addition, so passing is not a promise."""
    required_bytes = total_bytes(buffers)
    if required_bytes <= limit_bytes:
        return []
    parts = ", ".join(f"{buffer.name} {buffer.bytes / MIB:.1f}" for buffer in buffers)
    return [
        Violation(
            rule="vmem",
            value=f"the buffers need {required_bytes / MIB:.2f} MiB of VMEM ({parts})",
            limit=f"there are {limit_bytes / MIB:.2f} MiB",
            fix="use smaller tiles",
        )
    ]


def tiles_violations(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> list[Violation]:
    """Check the tiles of a configuration: dtype, alignment, VMEM. They need not divide the matrix."""
    violations = dtype_violations(MatmulSpec.of(1, 1, 1, spec.dtype_multiplied), chip)
    for letter, multiple in alignment(spec).items():
        size, tile = getattr(spec, letter), getattr(config.tiles, f"tile_{letter}")
        if tile > size:
            violations.append(above_matrix(letter, tile, size, "a block larger than its matrix"))
        elif tile != size and tile % multiple:
            instead = min(size, -(-tile // multiple) * multiple)
            violations.append(misaligned(letter, tile, multiple, "blocks", instead))
    if spec.dtype_dot != spec.dtype_accumulator and config.tiles.tile_k > EXACT_INT32_PRODUCTS:
        violations.append(inexact_sums(config.tiles.tile_k))
    violations += [*_joined_violations(spec, chip), *side_by_side_violations(spec, config.tiles)]
    return violations + vmem_violations(kernel_buffers(spec, config), usable_vmem_bytes(spec, chip))


def _joined_violations(spec: MatmulSpec, chip: Chip) -> list[Violation]:
    """Return a violation if two outputs lie in one array and no tiles make a kernel that writes it."""
    if not spec.joined_outputs or can_join_outputs(spec, chip.cores_per_device):
        return []
    return [
        Violation(
            rule="outputs",
            value=f"two outputs in one array of {spec.m} × {2 * spec.n}, in a batch of {spec.batch}",
            limit="only manual DMA writes such an array: on one core, of one product with even tiles",
            fix="have them apart, with side_by_side=False",
        )
    ]


def side_by_side_violations(spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
    """Check that no tile reaches from one matrix of an array into the other."""
    letter = "k" if spec.transpose_rhs else "n"
    size, tile = getattr(spec, letter), getattr(tiles, f"tile_{letter}")
    if not spec.side_by_side or size % tile == 0:
        return []
    limit = f"both matrices lie side by side, and a block cannot begin at column {size}"
    return [indivisible(letter, size, tile, limit)]


def config_violations(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> list[Violation]:
    violations = tiles_violations(spec, config, chip)
    if not violations and not fits_vmem(spec, config, chip):
        value = f"{_vmem_bytes(spec, config):,} bytes with what a subtile makes of operands"
        limit = f"of {usable_vmem_bytes(spec, chip):,}"
        violations.append(Violation(rule="VMEM", value=value, limit=limit, fix="use smaller subtiles"))
    fix = 'use pipeline="auto"'
    if chip.cores_per_device > 1 and config.pipeline != "auto":
        violations.append(Violation(rule="pipeline", value=str(config), limit="it would leave a core idle", fix=fix))
    if spec.joined_outputs and config.pipeline != "manual":
        limit = "only manual DMA writes two outputs into one array"
        violations.append(Violation(rule="pipeline", value=str(config), limit=limit, fix='use pipeline="manual"'))
    if config.pipeline == "manual" and not can_run_manually(spec, config.tiles):
        limit = "manual DMA takes one product that its tiles divide"
        violations.append(Violation(rule="pipeline", value=str(config), limit=limit, fix=fix))
    return violations


def require_legal(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> None:
    """Raise IllegalTilesError with each broken rule unless a configuration obeys every rule."""
    require_none(config, config_violations(spec, config, chip))


def fits_vmem(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> bool:
    """True if a kernel's buffers and its subtiles' operands leave the compiler enough of VMEM."""
    return _vmem_bytes(spec, config) <= usable_vmem_bytes(spec, chip)


def usable_vmem_bytes(spec: MatmulSpec, chip: Chip) -> int:
    return _compiler_need(spec).usable_bytes(chip.vmem_bytes_per_core)


def vmem_limit(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> int:
    """Return the bytes of VMEM to ask the compiler for: the buffers and its own need."""
    return _compiler_need(spec).limit_bytes(_vmem_bytes(spec, config), chip, chip.vmem_bytes_per_core)


def _compiler_need(spec: MatmulSpec) -> CompilerNeed:
    return _NEED_HIGHEST if spec.passes > 3 else _NEED


def _vmem_bytes(spec: MatmulSpec, config: KernelConfig) -> int:
    return total_bytes(kernel_buffers(spec, config)) + made_bytes(spec, config)
