"""One rung at one size: the tiles to try, or the reason why none can be tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from systolic.bench.comparison import abstract_operands, xla_matmul
from systolic.chips import Chip
from systolic.lessons.ladder.candidates import candidates
from systolic.lessons.ladder.rules import no_candidates
from systolic.lessons.ladder.rungs import Rung, clipped
from systolic.schedule import MIB, Tiles, Violation, total_bytes
from systolic.spec import MatmulSpec
from systolic.timing.experiment import Experiment
from systolic.timing.opponent import xla_experiments

# Above this size interpreting a product on a CPU takes longer than anyone waits.
LARGEST_CHECKED = 1024

# A step of more elements than this takes the compiler minutes, because the whole of it is unrolled. Where its buffers
# alone are over the limit the answer is known: the compiler has never been seen to need less than the buffers.
_LONG_STEP = 2048 * 2048 * 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request: rungs × square sizes on one chip."""

    rungs: tuple[Rung, ...]
    chip: Chip
    dtype: str
    sizes: tuple[int, ...]
    tiles: Tiles | None = None  # the tile rungs'
    splits: int = 4  # v2's
    sweep_trials: int | None = None  # number of tiles to try for the rungs that sweep; None: no sweep
    checked: bool = True  # compare results with float64
    xla_default_flags: bool = False  # race XLA with the chip's flags alone, and not with 64 MiB of scoped VMEM too


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One rung at one size: the tiles to try, or the reason why none can be tried."""

    request: Request
    rung: Rung
    spec: MatmulSpec
    tiles: Tiles  # the requested ones, or the rung's own
    tried: tuple[Tiles, ...] = ()  # tiles to compile; several in a sweep, none if a rule forbids them
    swept: bool = False  # search the fastest of several tiles
    violations: tuple[Violation, ...] = ()  # broken rules
    foregone: str = ""  # the refusal of a step that is too long to compile

    @classmethod
    def of(cls, request: Request, rung: Rung, size: int) -> Cell:
        """Make a cell from facts that are known without compiling."""
        spec = MatmulSpec.of(size, size, size, request.dtype)
        tiles = rung.default_tiles(spec, request.splits)
        if request.tiles is not None and rung.takes_tiles:
            tiles = request.tiles
        cell = cls(request=request, rung=rung, spec=spec, tiles=tiles)
        multiplied = request.dtype in request.chip.dtypes
        if request.sweep_trials is not None and rung.sweeps and request.tiles is None and multiplied:
            swept = _to_sweep(cell, request.sweep_trials)
            violations = () if swept else (no_candidates(size, request.chip),)
            return replace(cell, swept=bool(swept), tried=swept, violations=violations)
        if violations := rung.violations(spec, tiles, request.chip):
            return replace(cell, violations=tuple(violations))
        foregone = _foregone(cell)
        return replace(cell, foregone=foregone, tried=() if foregone else (tiles,))

    @property
    def size(self) -> int:
        """Rows and columns of the square matrices."""
        return self.spec.m

    @property
    def is_checked(self) -> bool:
        return self.request.checked and bool(self.tried) and self.size <= LARGEST_CHECKED

    @property
    def vmem_limit_bytes(self) -> int:
        return self.rung.vmem_limit_bytes or self.request.chip.scoped_vmem_bytes

    def multiply(self, tiles: Tiles, **options: object) -> Callable[..., object]:
        """Return the rung as a function of its operands alone."""
        return functools.partial(self.rung.multiply, tiles=tiles, dtype_out=self.spec.dtype_out, **options)

    def experiment(self, tiles: Tiles) -> Experiment:
        """Return the rung with these tiles."""
        label = f"{self.rung.name} {self.size}" + (f" {tiles}" if self.swept else "")
        args = abstract_operands(self.spec)
        return Experiment(fn=self.multiply(tiles), args=args, chip=self.request.chip, label=label)

    def xla(self) -> list[Experiment]:
        """Return XLA's product of the same size; the faster of these is the opponent."""
        fn, args = xla_matmul(self.spec), abstract_operands(self.spec)
        xla = Experiment(fn=fn, args=args, chip=self.request.chip, label=f"xla {self.size}")
        return xla_experiments(xla, default_flags_only=self.request.xla_default_flags)


def _to_sweep(cell: Cell, trials: int) -> tuple[Tiles, ...]:
    """Return the `trials` candidates with the best modelled times, and the rung's usual tiles if they are legal."""
    ranked = candidates(cell.rung, cell.spec, cell.request.chip)
    usual = clipped(cell.tiles, cell.spec)
    chosen = ranked[:trials]
    if usual in ranked and usual not in chosen:
        chosen[-1:] = [usual]
    return tuple(chosen)


def _foregone(cell: Cell) -> str:
    needed = total_bytes(cell.rung.buffers(cell.spec, cell.tiles))
    step = cell.tiles.tile_m * cell.tiles.tile_k * cell.tiles.tile_n
    if step <= _LONG_STEP or needed <= cell.vmem_limit_bytes:
        return ""
    return (
        f"VMEM: the buffers alone need {needed / MIB:.2f} MiB of {cell.vmem_limit_bytes / MIB:.2f} MiB; "
        "not sent to the compiler, which takes minutes to say so of a step this long"
    )
