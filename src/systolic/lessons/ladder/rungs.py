"""The table of the ladder: each rung's file, what it adds and costs, its tiles, and what it needs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np

from systolic.chips import Chip
from systolic.lessons.ladder.rules import band_rules, bands, block_rules, whole_rules
from systolic.schedule import MIB, IllegalTilesError, Tiles, Violation, VmemBuffer, dtype_violations
from systolic.spec import MatmulSpec, SpecError
from systolic.support.choices import unknown_name

if TYPE_CHECKING:
    import jax


class UnknownRungError(ValueError):
    """No rung of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One kernel of the ladder with the facts to check, time and explain it.

    Attributes:
      name: "v3".
      file: its module in this folder, which has `matmul(lhs, rhs, *, …, dtype_out, interpret)`.
      title, adds, costs: one line each, for tables.
      cut: the parts multiplied in a step: whole matrices, bands of rows and columns, or blocks.
      tiles: default block sizes; `tiles_float32` replace them if float32 blocks would be too large.
      full_rows_from: matrices with fewer rows get blocks of at most a quarter as many, so that there are steps enough.
      sweeps: `--sweep` searches its tiles.
      operand_buffers: blocks of lhs and of rhs in VMEM.
      accumulator: the sum has memory of its own. Otherwise the output block is the sum, and each step along k
        rounds it.
      vmem_limit_bytes: the kernel's request; 0: the default.
    """

    name: str
    file: str
    title: str
    adds: str
    costs: str
    cut: Literal["whole", "bands", "blocks"] = "blocks"
    tiles: Tiles | None = None
    tiles_float32: Tiles | None = None
    full_rows_from: int = 0
    sweeps: bool = False
    operand_buffers: int = 2
    accumulator: bool = False
    vmem_limit_bytes: int = 0

    @property
    def module(self) -> str:
        return f"{__package__}.{self.file}"

    @property
    def takes_tiles(self) -> bool:
        """True if it takes any blocks that divide the matrices."""
        return self.cut == "blocks"

    @property
    def multiply(self) -> Callable[..., jax.Array]:
        """`multiply(lhs, rhs, *, tiles, dtype_out, interpret=False)`, for other processes too; see `multiply_by`."""
        return functools.partial(multiply_by, self.name)

    def default_tiles(self, spec: MatmulSpec, splits: int) -> Tiles:
        """Return its default tiles, no side above the matrix; only v2 looks at `splits`."""
        if self.cut != "blocks":
            return Tiles.whole(spec) if self.cut == "whole" else bands(spec, splits)
        tiles = self.tiles_float32 if self.tiles_float32 and spec.dtype_lhs == "float32" else self.tiles
        assert tiles is not None
        if spec.m < self.full_rows_from:
            tiles = replace(tiles, tile_m=min(tiles.tile_m, self.full_rows_from // 4))
        return clipped(tiles, spec)

    def rules(self, spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
        """Return every broken rule, on any chip."""
        return {"whole": whole_rules, "bands": band_rules, "blocks": block_rules}[self.cut](spec, tiles)

    def violations(self, spec: MatmulSpec, tiles: Tiles, chip: Chip) -> list[Violation]:
        """Return every broken rule on this chip.

        Whether the blocks fit VMEM is left to the compiler.
        """
        result = [*dtype_violations(spec, chip), *self.rules(spec, tiles)]
        if not result and self.vmem_limit_bytes > chip.usable_vmem_bytes_per_core:
            result.append(
                Violation(
                    rule="not-on-this-chip",
                    value=f"{self.name} asks for {self.vmem_limit_bytes / MIB:.0f} MiB of VMEM",
                    limit=f"a core of {chip.name} has {chip.usable_vmem_bytes_per_core / MIB:.0f} MiB",
                    fix="use v5",
                )
            )
        return result

    def buffers(self, spec: MatmulSpec, tiles: Tiles) -> tuple[VmemBuffer, ...]:
        """Return the VMEM buffers that the launcher declares."""
        m, k, n, buffers = tiles.tile_m, tiles.tile_k, tiles.tile_n, self.operand_buffers
        result = [
            VmemBuffer(name="lhs", shape=(m, k), dtype=spec.dtype_lhs, copies=buffers),
            VmemBuffer(name="rhs", shape=(k, n), dtype=spec.dtype_rhs, copies=buffers),
            VmemBuffer(name="out", shape=(m, n), dtype=spec.dtype_out, copies=min(buffers, 2)),
        ]
        if self.accumulator:
            result.append(VmemBuffer(name="acc", shape=(m, n), dtype=spec.dtype_accumulator, copies=1))
        return tuple(result)

    def output_roundings(self, spec: MatmulSpec, tiles: Tiles) -> int:
        """Count the roundings of the running sum to the output's dtype, which the error tolerance needs."""
        return 1 if self.accumulator else tiles.grid(spec)[2]


_LARGE: dict[str, Any] = {
    "tiles": Tiles(tile_m=2048, tile_k=512, tile_n=2048),
    "tiles_float32": Tiles(tile_m=1024, tile_k=512, tile_n=2048),
    "full_rows_from": 4096,
    "accumulator": True,
    "vmem_limit_bytes": 56 * MIB,
}

_ALL = (
    Rung(
        name="v1",
        file="v1_whole",
        title="whole arrays",
        adds="a kernel: copy in, multiply, copy out",
        costs="all three matrices in VMEM at once, no copy hidden behind arithmetic",
        cut="whole",
        operand_buffers=1,
    ),
    Rung(
        name="v2",
        file="v2_rows_columns",
        title="rows × columns",
        adds="a grid of N×N bands, copies hidden behind arithmetic",
        costs="bands as long as k in VMEM, rhs read N times",
        cut="bands",
    ),
    Rung(
        name="v3",
        file="v3_block",
        title="blocks of 128³",
        adds="k cut as well, summed in the output block: VMEM no longer grows with the matrix",
        costs="operands read many times, many small steps, a running sum in the output's dtype",
        tiles=Tiles.cube(128),
    ),
    Rung(
        name="v4",
        file="v4_tiles",
        title="tiles that suit the chip",
        adds="larger tiles: more arithmetic for each byte and each step, found by a sweep",
        costs="VMEM, and sizes that the tiles have to divide",
        tiles=Tiles.cube(512),
        sweeps=True,
    ),
    Rung(
        name="v5",
        file="v5_accumulator",
        title="own accumulator",
        adds="a float32 or int32 sum in scratch memory, rounded once",
        costs="VMEM for the sum, one more pass over it at the end",
        tiles=Tiles(tile_m=512, tile_k=1024, tile_n=1024),
        tiles_float32=Tiles(tile_m=512, tile_k=512, tile_n=1024),
        sweeps=True,
        accumulator=True,
    ),
    Rung(
        name="v6",
        file="v6_subtiles",
        title="subtiles",
        adds="a loop over parts of a large tile: code stays short, operands are read less often",
        costs="48 MiB of VMEM, and few steps to hide the first and the last copy",
        **_LARGE,
    ),
    Rung(
        name="v7",
        file="v7_three_buffers",
        title="three buffers",
        adds="copies begin two steps ahead, in a pipeline that the kernel calls",
        costs="a third block of each operand in VMEM; one core",
        operand_buffers=3,
        **_LARGE,
    ),
    Rung(
        name="v8",
        file="v8_own_copies",
        title="hand-written copies",
        adds="copies and semaphores by hand: a subtile is stored while the next one is multiplied",
        costs="code, and three rules that nobody checks for you; one core",
        operand_buffers=3,
        **_LARGE,
    ),
)

RUNGS = {rung.name: rung for rung in _ALL}


def rungs_named(names: Sequence[str]) -> tuple[Rung, ...]:
    """Return the rungs of these names, each once, or all for none or `all`; raise UnknownRungError for others."""
    for name in names:
        if name not in RUNGS and name != "all":
            raise UnknownRungError(unknown_name("rung", name, (*RUNGS, "all")))
    chosen = list(RUNGS) if not names or "all" in names else dict.fromkeys(names)
    return tuple(RUNGS[name] for name in chosen)


def clipped(tiles: Tiles, spec: MatmulSpec) -> Tiles:
    """Return these tiles, no side longer than the matrix."""
    return Tiles(
        tile_m=min(tiles.tile_m, spec.m),
        tile_k=min(tiles.tile_k, spec.k),
        tile_n=min(tiles.tile_n, spec.n),
    )


def multiply_by(
    name: str, lhs: jax.Array, rhs: jax.Array, *, tiles: Tiles, dtype_out: str, interpret: Any = False
) -> jax.Array:
    """Return `lhs @ rhs` by a rung, after checking every rule.

    Raises:
      SpecError: the operands are not matrices, do not fit each other, or are empty.
      IllegalTilesError: the tiles or dtypes break a rule; the message lists every one.
    """
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0]:
        raise SpecError(f"{name}: lhs{list(lhs.shape)} @ rhs{list(rhs.shape)} needs lhs[m, k] and rhs[k, n]")
    (m, k), n = lhs.shape, rhs.shape[1]
    dtype_lhs, dtype_rhs = np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name
    spec = MatmulSpec(m=m, k=k, n=n, dtype_lhs=dtype_lhs, dtype_rhs=dtype_rhs, dtype_out=dtype_out)
    rung = RUNGS[name]
    if violations := rung.rules(spec, tiles):
        raise IllegalTilesError(name, violations)
    chosen: dict[str, int] = {
        "whole": {},
        "bands": {"bands": m // tiles.tile_m},
        "blocks": {"bm": tiles.tile_m, "bk": tiles.tile_k, "bn": tiles.tile_n},
    }[rung.cut]
    return importlib.import_module(rung.module).matmul(lhs, rhs, **chosen, dtype_out=dtype_out, interpret=interpret)
