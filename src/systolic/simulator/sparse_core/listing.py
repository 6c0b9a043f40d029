"""Read the final bundles of one SparseCore program, which libtpu leaves with `--xla_sc_dump_bundles_to`.

The text is an assembler listing of two sections: `scs`, the program of the core's sequencer, and `tec`, what its tiles
run. Each counts its bundles from zero. It is known from listings of libtpu 0.0.42; the reader fails with
the line that it does not understand rather than guess.

    .Ltmp0:
    0xa: {  [dreg:$0x4] = wrdreg s2;
    (pc) = sbr.rel @p0 .LBB2_5-.Ltmp0, $4  }

A semicolon separates the instructions of a bundle, `@p0` and `@!p0` are conditions, and `$4` is the number of bundles
after a branch that still run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from systolic.simulator.errors import SimulationError
from systolic.simulator.opcode_traits import Opcode
from systolic.simulator.opcodes import SPARSE_CORE

SECTIONS = ("scs", "tec")

# Sizes in HBM, in granules. With these a program ends where the launch states.
_SEQUENCER_GRANULES = 1
TILE_GRANULES = 2
# What a program has in addition to its listing if its sequencer does not load the tiles' code: launches of v7x' data
# formatting say 222, 238 and 334 granules, for 214, 230 and 326 in the listings.
_LOADER_GRANULES = 8
IMAGE_GRANULES = 8064  # a program is padded to this in HBM

_BUNDLE = re.compile(r"0x([0-9a-f]+): \{\s*(.*)", re.ASCII | re.DOTALL)
_TABLE = re.compile(r"\.L[\w.\-]+_const_literal_config", re.ASCII)
_LABEL = re.compile(r"([.\w]+):", re.ASCII)
_INSTRUCTION = re.compile(
    r"(?P<dest>\S.*?) =\s+(?P<opcode>[a-z][\w.]*)(?:\s+@(?P<negated>!?)(?P<predicate>p\d+))?\s*(?P<operands>.*)",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseInstruction:
    """One instruction: `dests` and `operands` as printed, and its condition."""

    opcode: str
    dests: tuple[str, ...]
    operands: tuple[str, ...]
    predicate: str | None
    negated: bool
    text: str

    @property
    def traits(self) -> Opcode:
        """The opcode's entry in the table."""
        return SPARSE_CORE[self.opcode]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseBundle:
    """The instructions that issue in one cycle."""

    line: int  # of the listing, from 1
    instructions: tuple[SparseInstruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSection:
    """The program of the sequencer or of the tiles."""

    bundles: tuple[SparseBundle, ...]
    labels: dict[str, int] = field(repr=False)  # label → index of the bundle after it


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseListing:
    """A listing that has been read."""

    name: str
    scs: SparseSection
    tec: SparseSection

    @property
    def granules(self) -> int:
        """Size of the program in HBM, in granules of 32 bytes."""
        listed = len(self.scs.bundles) * _SEQUENCER_GRANULES + len(self.tec.bundles) * TILE_GRANULES
        return listed + (_LOADER_GRANULES if self.comes_with_tile_code else 0)

    @property
    def comes_with_tile_code(self) -> bool:
        """True if the tiles have their code from the launch on: the sequencer copies none to their memory."""
        return bool(self.tec.bundles) and not any(
            dest.startswith("[timem:")
            for bundle in self.scs.bundles
            for instruction in bundle.instructions
            for dest in instruction.dests
        )

    def symbols(self) -> dict[str, int]:
        """Return values of the names that instructions use as numbers: function addresses and sizes, and a table.

        The table, such as a collective's neighbors, is the first thing that the program has in HBM; one of several
        tables has no known place.
        """
        result = {"_scs_section_size": len(self.scs.bundles) * _SEQUENCER_GRANULES}
        tables = {
            operand
            for bundle in self.scs.bundles
            for instruction in bundle.instructions
            for operand in instruction.operands
            if _TABLE.fullmatch(operand)
        }
        functions = {name: at for name, at in self.tec.labels.items() if not name.startswith(".")}
        starts = sorted(functions.values())
        for name, at in functions.items():
            following = next((start for start in starts if start > at), len(self.tec.bundles))
            result[name] = at
            result[f"_size_{name}"] = following - at
        return result | (dict.fromkeys(tables, 0) if len(tables) == 1 else {})


def parse_sparse_listing(name: str, text: str) -> SparseListing:
    bundles: dict[str, list[SparseBundle]] = {section: [] for section in SECTIONS}
    labels: dict[str, dict[str, int]] = {section: {} for section in SECTIONS}
    section = ""
    for number, line in _logical_lines(name, text):
        if line in SECTIONS:
            section = line
        elif not section:
            raise SimulationError(f"{name}, line {number}: neither scs nor tec: {line[:200]}")
        elif label := _LABEL.fullmatch(line):
            labels[section][label[1]] = len(bundles[section])
        elif match := _BUNDLE.fullmatch(line):
            if int(match[1], 16) != len(bundles[section]):
                raise SimulationError(f"{name}, line {number}: bundle 0x{match[1]}: the listing is cut or doubled")
            instructions = tuple(_instruction(name, number, piece) for piece in _pieces(match[2]))
            bundles[section].append(SparseBundle(line=number, instructions=instructions))
        else:
            raise SimulationError(f"{name}, line {number}: not a bundle: {line[:200]}")
    if not bundles["scs"]:
        raise SimulationError(f"{name}: the listing holds no program of a sequencer")
    scs, tec = (SparseSection(bundles=tuple(bundles[section]), labels=labels[section]) for section in SECTIONS)
    return SparseListing(name=name, scs=scs, tec=tec)


def _logical_lines(name: str, text: str) -> Iterator[tuple[int, str]]:
    pending: list[str] = []
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not pending:
            start = number
        if pending or "{" in stripped:
            pending.append(stripped)
            if stripped.endswith("}"):
                yield start, " ".join(pending)
                pending = []
        elif stripped:
            yield number, stripped
    if pending:
        raise SimulationError(f"{name}, line {start}: a bundle does not end: {pending[0][:200]}")


def _pieces(body: str) -> list[str]:
    return [piece.strip() for piece in body.removesuffix("}").split(";") if piece.strip()]


def _instruction(name: str, line: int, text: str) -> SparseInstruction:
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        raise SimulationError(f"{name}, line {line}: no instruction: {text[:200]}")
    return SparseInstruction(
        opcode=match["opcode"],
        dests=tuple(part.strip() for part in match["dest"].split(",")),
        operands=tuple(part.strip() for part in match["operands"].split(",") if part.strip()),
        predicate=match["predicate"],
        negated=bool(match["negated"]),
        text=" ".join(text.split()),
    )
