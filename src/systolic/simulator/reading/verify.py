"""Check the reading of a listing before anything is executed; this finds most mistakes.

Every use of a register names the value that is meant: `%s12_s3` is virtual register s12 in physical register s3. So
along every path through the basic blocks as they were read, s12 has to be what was written to s3 last. A delay slot
too many, a region's start misplaced or a branch misread puts another value there on some path.

Values meet only at a `sphi` or `pphi`, whose sources each come along some path. A predicated write leaves the old
value where its predicate does not hold: which of the two is there is known where an instruction or a branch asks for
the same predicate, and elsewhere either may be meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.blocks import Block, branch_of
from systolic.simulator.reading.listing import Bundle, Instruction, Predicate, Program

_USE = re.compile(r"%(\w+)_((?:s|p)\d+)\b", re.ASCII)

# Physical register → virtual registers that may be in it. With `_EITHER` among them, a use may mean any of them.
_Values = dict[str, frozenset[str]]
_EITHER = "?"


@dataclass(slots=True)
class _State:
    """The contents of registers at one point of a block, and the predicated writes since its beginning."""

    values: _Values
    # Physical register → the predicate of its last write, by virtual name and polarity, and what it held before.
    predicated: dict[str, tuple[str, bool, frozenset[str]]] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.values), dict(self.predicated))

    def write(self, instruction: Instruction, register: str, name: str) -> None:
        predicate = instruction.predicate
        if predicate is None or predicate.name is None:
            self.values[register] = frozenset({name})
            self.predicated.pop(register, None)
            return
        before = self.values.get(register, frozenset())
        earlier = self.predicated.get(register)
        if earlier is not None and earlier[:2] == (predicate.name, predicate.negated):
            before = earlier[2]
        elif earlier is not None:
            before |= earlier[2] | {_EITHER}
        self.predicated[register] = (predicate.name, predicate.negated, before)
        self.values[register] = frozenset({name})

    def held(self, register: str, predicate: Predicate | None) -> frozenset[str]:
        """Return the values that a use under that predicate may find."""
        now = self.values.get(register, frozenset())
        earlier = self.predicated.get(register)
        if earlier is None:
            return now
        name, negated, before = earlier
        if predicate is not None and predicate.name == name:
            return now if predicate.negated == negated else before
        return now | before | {_EITHER} if before else frozenset()

    def leave(self, branch: Predicate | None, *, taken: bool) -> _Values:
        """Return the contents of registers after a branch, on one of its two ways."""
        left = dict(self.values)
        for register, (name, negated, before) in self.predicated.items():
            if branch is not None and branch.name == name:
                holds = taken != branch.negated  # the predicate itself, on this way
                writers = left[register] if holds != negated else before
            else:
                writers = left[register] | before | {_EITHER} if before else frozenset()
            left[register] = writers
        return {register: names for register, names in left.items() if names}


def check_registers(program: Program, blocks: Sequence[Block]) -> None:
    """Compare every use of a scalar or predicate register with the value written there.

    Raises:
      SimulationError: a use of what is not there on some path; the message quotes the line.
    """
    _Check(program, blocks).run()


class _Check:
    def __init__(self, program: Program, blocks: Sequence[Block]) -> None:
        self.program = program
        self.blocks = blocks
        self.aliases: dict[str, str] = {}
        for instruction in program.instructions:
            # A pointer made from a number is the same value under another name.
            if instruction.traits.kind == "pointer" and instruction.dest and instruction.operands:
                for name, _ in _USE.findall(instruction.operands[0]):
                    self.aliases[instruction.dest.rsplit("_", 1)[0]] = name
        # Most instructions, of the matrix units, have vector registers only.
        self.code = [
            [
                (bundle, in_bundle)
                for bundle in program.bundles[block.first : block.last + 1]
                if (in_bundle := [code for code in bundle.instructions if _USE.search(code.text)])
            ]
            for block in blocks
        ]

    def run(self) -> None:
        entries = self._entries()
        for number, entry in enumerate(entries):
            if entry is None:  # no path leads here
                continue
            state = _State(dict(entry))
            for bundle, instructions in self.code[number]:
                self._check(bundle, instructions, state)
                self._apply(instructions, state)

    def _entries(self) -> list[_Values | None]:
        """Compute the possible contents of registers at the begin of each block."""
        entries: list[_Values | None] = [None] * len(self.blocks)
        entries[0] = {}
        pending = [0]
        while pending:
            number = pending.pop()
            block = self.blocks[number]
            state = _State(dict(entries[number] or {}))
            for _, instructions in self.code[number]:
                self._apply(instructions, state)
            branch = branch_of(self.program.bundles[block.branch]) if block.branch is not None else None
            predicate = branch.predicate if branch is not None else None
            for successor, taken in ((block.taken, True), (block.following, False)):
                always = branch is not None and predicate is None
                if successor is None or (always and not taken):
                    continue
                left = state.leave(predicate, taken=taken)
                entry = entries[successor]
                merged = left if entry is None else dict(entry)
                if entry is not None:
                    for register, names in left.items():
                        merged[register] = merged.get(register, frozenset()) | names
                if merged != entry:
                    entries[successor] = merged
                    pending.append(successor)
        return entries

    def _value(self, name: str) -> str:
        seen = {name}
        while (name := self.aliases.get(name, name)) not in seen:
            seen.add(name)
        return name

    def _apply(self, instructions: Sequence[Instruction], state: _State) -> None:
        for instruction in _in_order(instructions):
            if instruction.dest is not None and "_" in instruction.dest:
                name, register = instruction.dest.rsplit("_", 1)
                if instruction.traits.kind == "pointer" and instruction.operands[0].endswith(f"_{register}"):
                    continue  # the same value in the same register, under another name
                state.write(instruction, register, self._value(name))

    def _check(self, bundle: Bundle, instructions: Sequence[Instruction], state: _State) -> None:
        """Check the uses in a bundle. Reads come before writes, but a phi comes first and `int_to_ptr` last."""
        reads = state.copy()
        for instruction in instructions:
            if instruction.traits.kind == "phi" and instruction.dest is not None:
                self._check_uses(bundle, instruction, [state], any_state=True)
                name, register = instruction.dest.rsplit("_", 1)
                reads.write(instruction, register, self._value(name))
        written = reads.copy()
        self._apply(instructions, written)
        for instruction in instructions:
            if instruction.traits.kind == "pointer":
                # It forwards: what its own bundle writes is as good as what was there.
                self._check_uses(bundle, instruction, [reads, written], any_state=True)
            elif instruction.traits.kind != "phi":
                self._check_uses(bundle, instruction, [reads], any_state=False)

    def _check_uses(
        self, bundle: Bundle, instruction: Instruction, states: Sequence[_State], *, any_state: bool
    ) -> None:
        for text in instruction.operands:
            for name, register in _USE.findall(text):
                held = frozenset().union(*(state.held(register, instruction.predicate) for state in states))
                if not held:  # never written on any path: an argument, or what no branch depends on
                    continue
                if self._value(name) in held if any_state or _EITHER in held else held == {self._value(name)}:
                    continue
                raise SimulationError(
                    f"{self.program.name}, line {bundle.line}: {name} is read from {register}, which holds "
                    f"{' or '.join(sorted(held - {_EITHER}))} here: {instruction.text[:200]}"
                )


def _in_order(instructions: Sequence[Instruction]) -> Sequence[Instruction]:
    """Return a bundle's writes in the order of their effects: phis first, `int_to_ptr` last."""
    if len(instructions) < 2:
        return instructions

    def rank(instruction: Instruction) -> int:
        return 0 if instruction.traits.kind == "phi" else 2 if instruction.traits.kind == "pointer" else 1

    return sorted(instructions, key=rank)
