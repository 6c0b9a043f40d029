"""A check that finds most mistakes of a reader of listings, before anything is executed.

Every use of a register names the value that is meant: `%s12_s3` is virtual register s12 in physical register s3. So
along every path through the basic blocks as they were read, s12 has to be what was written to s3 last. A delay slot
too many, a region's start misplaced or a branch misread puts another value there on some path.

Values meet at a `sphi` only, each of whose sources comes along some path. A predicated write counts as a write: what
reads it either stands under the same predicate or was written to be right in both cases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from systolic.simulator.blocks import Block
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Bundle, Instruction, Program

_USE = re.compile(r"%(\w+)_((?:s|p)\d+)\b", re.ASCII)

_Values = dict[str, frozenset[str]]  # physical register → virtual registers that may be in it


def check_registers(program: Program, blocks: Sequence[Block]) -> None:
    """Compares every use of a scalar or predicate register with what was written there.

    Raises:
      SimulationError: a use of what is not there on some path; the message quotes the line.
    """
    _Check(program, blocks).run()


class _Check:
    def __init__(self, program: Program, blocks: Sequence[Block]) -> None:
        self.program = program
        self.blocks = blocks
        self.aliases: dict[str, str] = {}
        for bundle in program.bundles:
            for instruction in bundle.instructions:
                # A pointer made from a number is the same value under another name.
                if instruction.opcode.startswith("int_to_ptr") and instruction.dest and instruction.operands:
                    for name, _ in _USE.findall(instruction.operands[0]):
                        self.aliases[instruction.dest.rsplit("_", 1)[0]] = name

    def run(self) -> None:
        entries = self._entries()
        for number, block in enumerate(self.blocks):
            entry = entries[number]
            if entry is None:  # no path leads here
                continue
            state = dict(entry)
            for bundle in self.program.bundles[block.first : block.last + 1]:
                self._check(bundle, state)
                self._apply(bundle, state)

    def _entries(self) -> list[_Values | None]:
        """What each register may hold where each block begins."""
        entries: list[_Values | None] = [None] * len(self.blocks)
        entries[0] = {}
        pending = [0]
        while pending:
            number = pending.pop()
            block = self.blocks[number]
            state = dict(entries[number] or {})
            for bundle in self.program.bundles[block.first : block.last + 1]:
                self._apply(bundle, state)
            for successor in (block.taken, block.following):
                if successor is None:
                    continue
                known = entries[successor]
                merged = dict(state if known is None else known)
                if known is not None:
                    for register, names in state.items():
                        merged[register] = merged.get(register, frozenset()) | names
                if merged != known:
                    entries[successor] = merged
                    pending.append(successor)
        return entries

    def _value(self, name: str) -> str:
        seen = {name}
        while (name := self.aliases.get(name, name)) not in seen:
            seen.add(name)
        return name

    def _apply(self, bundle: Bundle, state: _Values) -> None:
        for instruction in _in_order(bundle):
            if instruction.dest is not None and "_" in instruction.dest:
                name, register = instruction.dest.rsplit("_", 1)
                state[register] = frozenset({self._value(name)})

    def _check(self, bundle: Bundle, state: _Values) -> None:
        """All reads of a bundle come before its writes, but for `sphi`, which is first, and `int_to_ptr`, last."""
        reads = dict(state)
        for instruction in bundle.instructions:
            if instruction.opcode == "sphi" and instruction.dest is not None:
                self._check_uses(bundle, instruction, state, some=True)
                name, register = instruction.dest.rsplit("_", 1)
                reads[register] = frozenset({self._value(name)})
        written = dict(reads)
        self._apply(bundle, written)
        for instruction in bundle.instructions:
            if instruction.opcode.startswith("int_to_ptr"):
                # It forwards: what its own bundle writes is as good as what was there.
                either = {register: names | written[register] for register, names in reads.items()}
                self._check_uses(bundle, instruction, {**written, **either}, some=True)
            elif instruction.opcode != "sphi":
                self._check_uses(bundle, instruction, reads, some=False)

    def _check_uses(self, bundle: Bundle, instruction: Instruction, values: _Values, *, some: bool) -> None:
        for text in instruction.operands:
            for name, register in _USE.findall(text):
                held = values.get(register)
                if not held:  # never written on any path: an argument, or what no branch depends on
                    continue
                if self._value(name) in held if some else held == {self._value(name)}:
                    continue
                raise SimulationError(
                    f"{self.program.name}, line {bundle.line}: {name} is read from {register}, which holds "
                    f"{' or '.join(sorted(held))} here: {instruction.text[:200]}"
                )


def _in_order(bundle: Bundle) -> list[Instruction]:
    """Writes of a bundle in the order in which they take effect: `sphi` first, `int_to_ptr` last."""

    def rank(instruction: Instruction) -> int:
        return 0 if instruction.opcode == "sphi" else 2 if instruction.opcode.startswith("int_to_ptr") else 1

    return sorted(bundle.instructions, key=rank)
