"""Translate a section of a SparseCore listing into a Python generator that computes the times of all events.

As in the TensorCore's programs, registers are local variables, and the machine is called for everything that takes its
own time or concerns other units; everything else takes a cycle per bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from systolic.simulator.errors import SimulationError, reading
from systolic.simulator.hardware.values import COMPUTED, LANE_NUMBERS
from systolic.simulator.hardware.words import SCOPE
from systolic.simulator.sparse_core.blocks import SparseBlock, split_section
from systolic.simulator.sparse_core.bundle import BundleReader
from systolic.simulator.sparse_core.code import BundleCode
from systolic.simulator.sparse_core.listing import SparseListing, SparseSection
from systolic.simulator.sparse_core.liveness import leave_out_dead_values, registers_in
from systolic.simulator.sparse_core.machine import CALLED
from systolic.simulator.sparse_core.own_words import constant_words
from systolic.simulator.sparse_core.program import SparseFunction, SparseProgram
from systolic.simulator.translating.control_flow import dispatch

_CALLED = re.compile(rf"\b(?:{'|'.join(CALLED)})\b", re.ASCII)
_MAX_ENDS = 1 << 14  # of loops that are kept


def translate_sparse(listing: SparseListing) -> SparseProgram:
    """Translate both sections of a listing; raise SimulationError with an unknown instruction."""
    symbols = listing.symbols()
    return SparseProgram(
        name=listing.name,
        scs=_Translator(listing.name, listing.scs, "scs", symbols).translate(),
        tec=_Translator(listing.name, listing.tec, "tec", symbols).translate() if listing.tec.bundles else None,
        symbols=symbols,
        granules=listing.granules,
        comes_with_tile_code=listing.comes_with_tile_code,
    )


class _Translator:
    def __init__(self, name: str, section: SparseSection, kind: str, symbols: Mapping[str, int]) -> None:
        self._name = name
        self._section = section
        self._kind = kind
        self._blocks = split_section(name, section, kind)
        self._symbols = symbols

    def translate(self) -> SparseFunction:
        code = self._code()
        bodies = [self._block(index, code[index]) for index in range(len(code))]
        names = " = ".join(sorted(self._reader.variables))
        lines = [
            "def run(t, machine, block):",
            *(f"    {name} = machine.{name}" for name in CALLED),
            "    cycle = machine.cycle",
            *([f"    {names} = nothing"] if names else []),
            "    while True:",
            *dispatch(bodies, 0, len(bodies), "        "),
        ]
        source = "\n".join(lines)
        title = f"{self._name} {self._kind}"
        scope = SCOPE | {"computed": COMPUTED, "lane_numbers": LANE_NUMBERS, "range": range}
        scope |= {"len": len, "map": map, "type": type, "numbers": {int, bool}, "ends": {}}
        with reading(title):
            exec(compile(source, f"<{title!a}>", "exec"), scope)
        starts = {block.first: index for index, block in enumerate(self._blocks)}
        labels = self._section.labels
        entries = {name: starts[at] for name, at in labels.items() if name[0] != "." and at in starts}
        return SparseFunction(name=title, run=scope["run"], entries=entries, source=source)

    def _code(self) -> list[list[BundleCode]]:
        """Read all bundles; a tile's own words of memory, to which registers are spilled, are variables.

        A word that may be read before it is written has a value from outside, and is no variable.
        """
        jumps = {id(block.branch) for block in self._blocks}
        is_tile = self._kind == "tec"
        own = constant_words(self._section, self._symbols) if is_tile else frozenset()
        starts = {0, *(at for label, at in self._section.labels.items() if label[0] != ".")}
        while True:
            self._reader = BundleReader(
                self._name, self._section, self._symbols, takes_turns=not is_tile, jumps=jumps, own_words=own
            )
            code = [[self._read(number) for number in range(block.first, block.last + 1)] for block in self._blocks]
            alive = leave_out_dead_values(self._blocks, code)
            read = frozenset().union(*(alive[i] for i, block in enumerate(self._blocks) if block.first in starts))
            if own.isdisjoint(read):
                return code
            own -= read

    def _read(self, number: int) -> BundleCode:
        bundle = self._section.bundles[number]
        try:
            return self._reader.read(bundle)
        except (SimulationError, LookupError, ValueError) as error:
            raise SimulationError(f"{self._name}, line {bundle.line}: {error}") from error

    def _block(self, index: int, bundles: Sequence[BundleCode]) -> list[str]:
        branch = self._blocks[index].branch if self._blocks[index].taken == index else None
        if branch is not None and branch.predicate is not None and all(bundle.is_plain for bundle in bundles):
            return self._plain_loop(index, bundles)
        code: list[str] = []
        cycles = 0
        for bundle in bundles:
            if bundle.events and cycles:
                code.append(f"t += {cycles} * cycle")
                cycles = 0
            code += bundle.lines()
            cycles += bundle.cycles
            if bundle.ends:
                return [*code, f"return t + {cycles} * cycle"]
        if cycles:
            code.append(f"t += {cycles} * cycle")
        return code + self._leave(index, self._blocks[index])

    def _plain_loop(self, index: int, bundles: Sequence[BundleCode]) -> list[str]:
        """Make a Python loop of a block that repeats itself and is not seen outside: tiles go round many of them.

        Most of them count, from the same number each time: where a loop ends is looked up by the registers it reads.
        """
        loop = [
            "for rounds in range(left() + 1):",
            *(f"    {line}" for bundle in bundles for line in bundle.lines()),
            "    if not jump:",
            "        break",
        ]
        read = sorted(registers_in("\n".join(loop)))
        if read and not any(_CALLED.search(line) for line in loop[1:]):
            registers = ", ".join(read)
            loop = [
                f"begin = {index}, {registers}",
                "known = numbers.issuperset(map(type, begin))",
                "if known and begin in ends:",
                f"    rounds, jump, {registers} = ends[begin]",
                "else:",
                *(f"    {line}" for line in loop),
                f"    if known and not jump and len(ends) < {_MAX_ENDS}:",
                f"        ends[begin] = rounds, jump, {registers}",
            ]
        return [
            *loop,
            "round(rounds + (jump is True))",
            f"t += (rounds + 1) * {sum(bundle.cycles for bundle in bundles)} * cycle",
            *_go(index, self._blocks[index].following),
        ]

    def _leave(self, index: int, block: SparseBlock) -> list[str]:
        if block.branch is None:
            return _go(index, block.following)
        if block.branch.predicate is None:
            return _go(index, block.taken)
        taken, following = ([f"    {line}" for line in _go(index, to)] for to in (block.taken, block.following))
        return ["if jump:", *taken, "else:", *following]


def _go(index: int, target: int | None) -> list[str]:
    """Make code that goes from one block to another; None: the program ends."""
    if target is None:
        return ["return t"]
    return [*(["round()"] if target <= index else []), f"block = {target}"]
