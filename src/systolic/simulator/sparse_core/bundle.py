"""Translate one bundle of a SparseCore program into Python code: its events, then all reads before all writes.

Of vector instructions only masks are followed that compare a scalar with the lanes' numbers; values that they pass to
the scalar side are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from systolic.simulator.errors import SimulationError
from systolic.simulator.sparse_core.blocks import delay_cycles
from systolic.simulator.sparse_core.code import JUMP, BundleCode, Condition, NewValue, Step
from systolic.simulator.sparse_core.listing import SparseBundle, SparseInstruction, SparseSection
from systolic.simulator.sparse_core.own_words import own_word
from systolic.simulator.sparse_core.scalar import expression, operand, place, register
from systolic.simulator.sparse_core.streams import LANES_BELOW, mask_lanes, read_general_copy, read_stream, space_of
from systolic.simulator.translating.control_flow import until
from systolic.simulator.translating.literals import number, quoted, variable

_VECTOR_REGISTER = re.compile(r"v\d+", re.ASCII)
_MASK_REGISTER = re.compile(r"vm\d+", re.ASCII)


class BundleReader:
    """Translates bundles of one section.

    Args:
      name: of the program.
      symbols: values of its names.
      takes_turns: other programs may act before an event of this one that reads what they change.
      jumps: `id`s of the branches that end blocks.
      own_words: variables for words that nothing but this section reads or writes: `own_words`.
    """

    def __init__(
        self,
        name: str,
        section: SparseSection,
        symbols: Mapping[str, int],
        *,
        takes_turns: bool,
        jumps: Set[int],
        own_words: Set[str] = frozenset(),
    ) -> None:
        self._name = name
        self._symbols = symbols
        self._takes_turns = takes_turns
        self._jumps = jumps
        self._own_words = own_words
        self.variables: set[str] = set()
        self._compared = frozenset(
            operand
            for bundle in section.bundles
            for instruction in bundle.instructions
            if instruction.opcode == LANES_BELOW
            for operand in instruction.operands
            if _VECTOR_REGISTER.fullmatch(operand)
        )

    def read(self, bundle: SparseBundle) -> BundleCode:
        """Translate a bundle; raise SimulationError, LookupError or ValueError for one that is not understood."""
        events: list[Step] = []
        values: dict[str, NewValue] = {}
        effects: list[Step] = []
        halts: list[Step] = []
        ends = False
        for instruction in bundle.instructions:
            kind, condition = instruction.traits.kind, self._condition(instruction)
            if kind == "halt":
                ends = ends or condition is None
                halts += [] if condition is None else [Step(["return t"], condition)]
            elif event := self._event(instruction, bundle.line):
                events.append(Step(event, condition))
            elif kind in ("branch", "branch out"):
                if condition is not None and id(instruction) in self._jumps:
                    effects.append(Step([JUMP + (condition[0] if condition[1] else f"not {condition[0]}")], None))
            elif (word := self._own_word(instruction)) is not None:
                values.update(self._own(instruction, word, condition, values))
            elif effect := self._effect(instruction):
                effects.append(Step([effect], condition))
            else:
                values.update(self._assigned(instruction, condition, values))
        if halts:  # the rest of the bundle runs first
            events, effects = [*events, *effects, *halts], []
        return BundleCode(events=events, effects=effects, values=values, cycles=1 + delay_cycles(bundle), ends=ends)

    def _event(self, instruction: SparseInstruction, line: int) -> list[str]:
        kind, operands = instruction.traits.kind, instruction.operands
        where = quoted(f"{self._name}, line {line}: {instruction.text}")
        turn = ["yield t"] if self._takes_turns else []
        if kind == "wait":
            waits = (
                f"wait(t, {self._place(operands[0])}, {self._operand(operands[1])}, {instruction.opcode == 'swait.eq'})"
            )
            return [*turn, *until(waits, where), "t = r"]
        if kind == "stream":
            stream = read_stream(instruction)
            count = "1" if stream.count is None else self._operand(stream.count)
            if stream.mask is not None:
                count = self._lanes(stream.mask)
            ends = f"{quoted(stream.source)}, {quoted(stream.destination)}"
            words, flag = self._operand(stream.words), self._place(stream.flag)
            return [
                "yield t",
                f"stream(t, {flag}, {ends}, {words}, {count}, {stream.count or stream.mask is not None})",
            ]
        if kind == "copy":
            (flag,) = (text for text in instruction.dests if text.startswith("[sflag:"))
            ends = [space_of(text, instruction) for text in (instruction.operands[0], instruction.dests[0])]
            places = f"{self._place(operands[0])}, {self._place(instruction.dests[0])}"
            spaces = f"{quoted(ends[0])}, {quoted(ends[1])}"
            return ["yield t", f"copy(t, {self._place(flag)}, {spaces}, {places}, {self._operand(operands[1])})"]
        if kind == "copy to any device":
            copy = read_general_copy(instruction)
            ends = f"{quoted(copy.source)}, {quoted(copy.destination)}"
            flags = f"{self._place(copy.flag)}, {self._place(copy.source_flag)}"
            size, target = self._operand(copy.granules), self._operand(copy.target)
            return ["yield t", f"general(t, {flags}, {ends}, {size}, {target})"]
        if kind == "fetch and add":
            word, flag = map(self._place, instruction.dests)
            return ["yield t", *until(f"fetch_add(t, {word}, {flag}, {self._operand(operands[0])})", where), "t = r"]
        if kind == "task":
            return ["yield t", f"task(t, {self._place(operands[0])}, {self._operand(operands[1])})"]
        if kind == "barrier":
            return ["yield t", *until(f"barrier(t, {self._place(instruction.dests[0])})", where), "t = r"]
        if kind in ("signal", "signal in the core"):
            call = "signal" if kind == "signal" else "signal_inside"
            return ["yield t", f"{call}(t, {self._place(instruction.dests[0])}, {self._operand(operands[0])})"]
        if kind == "refused":
            return [f"refuse({where})"]
        if kind == "unsupported":
            raise SimulationError(f"not understood: {instruction.text}")
        return []

    def _own_word(self, instruction: SparseInstruction) -> str | None:
        word = own_word(instruction, self._symbols)
        return word if word in self._own_words else None

    def _own(
        self, instruction: SparseInstruction, word: str, condition: Condition | None, others: Mapping[str, NewValue]
    ) -> dict[str, NewValue]:
        """Return the new value of a word that is a variable, or of the register that it is loaded into."""
        if instruction.traits.kind in ("load", "read argument"):
            return self._assigned(instruction, condition, others)
        other = others.get(self._variable(word))
        otherwise = word if other is None else f"({other.expression()})"
        return {word: NewValue(self._operand(instruction.operands[0]), condition, otherwise)}

    def _effect(self, instruction: SparseInstruction) -> str | None:
        kind, operands = instruction.traits.kind, instruction.operands
        if kind == "add to flag":
            return f"add(t, {self._place(instruction.dests[0])}, {self._operand(operands[0])})"
        if kind == "set flag":
            return f"put({self._place(instruction.dests[0])}, {self._operand(operands[0])})"
        if kind == "store":
            return f"store(t, {self._place(instruction.dests[0])}, {self._operand(operands[0])})"
        if kind == "write argument":
            return f"write_argument({self._place(instruction.dests[0])}, {self._operand(operands[0])})"
        return None

    def _assigned(
        self, instruction: SparseInstruction, condition: Condition | None, others: Mapping[str, NewValue]
    ) -> dict[str, NewValue]:
        """Return new values of registers; `others` are those of instructions before it in the bundle."""
        traits = instruction.traits
        mask = _MASK_REGISTER.fullmatch(instruction.dests[0])
        if mask is not None:
            dest = self._variable("x" + mask.group()[2:])
            return {dest: NewValue(self._mask(instruction), None, dest)}
        if traits.kind in ("ignored", "delay", "halt"):
            return {}
        result = {}
        for text in instruction.dests:
            if text in self._compared:
                dest = self._variable("w" + text[1:])
                result[dest] = NewValue(self._in_all_lanes(instruction), None, dest)
            elif dest := register(text):
                other = others.get(self._variable(dest))  # under the opposite condition
                otherwise = dest if other is None else f"({other.expression()})"
                result[dest] = NewValue(self._value(instruction), condition, otherwise)
        if not result and instruction.opcode[0] == "s" and not instruction.dests[0].startswith("v"):
            raise SimulationError(f"not understood: {instruction.text}")
        return result

    def _mask(self, instruction: SparseInstruction) -> str:
        """Return the expression for the lanes of a mask, a bit for each."""
        operands, lanes = instruction.operands, mask_lanes(instruction)
        if instruction.opcode == LANES_BELOW and self._compared.issuperset(operands) and not instruction.predicate:
            limit, numbers = (self._variable("w" + text[1:]) for text in operands)
            return f"lanes_below({limit}, {numbers})"
        if instruction.opcode == "vmand":
            first, other = (self._variable("x" + text[2:]) for text in operands)
            return f"lanes_of_both({first}, {other})"
        return "computed" if lanes is None else number(lanes)

    def _in_all_lanes(self, instruction: SparseInstruction) -> str:
        """Return the expression for the value that a vector instruction puts into every lane, or the lanes' numbers."""
        if instruction.predicate is None:
            if instruction.opcode in ("vmov", "vimm.s32") and instruction.operands[0][0] != "v":
                return self._operand(instruction.operands[0])
            if instruction.opcode == "vlaneseq.u32":
                return "lane_numbers"
        return "computed"

    def _value(self, instruction: SparseInstruction) -> str:
        traits, operands = instruction.traits, instruction.operands
        if (word := self._own_word(instruction)) is not None:
            return self._variable(word)
        if traits.kind == "load":
            return f"load({self._place(operands[0])})"
        if traits.kind == "read flag":
            return f"read_flag(t, {self._place(operands[0])})"
        if traits.kind == "read argument":
            return f"read_argument({self._place(operands[0])})"
        if not traits.expression:
            raise SimulationError(f"not understood: {instruction.opcode} {', '.join(operands)}")
        self._use(operands)
        return expression(traits, operands, self._symbols)

    # ---- names ----

    def _condition(self, instruction: SparseInstruction) -> Condition | None:
        predicate = instruction.predicate
        return None if predicate is None else (self._variable(predicate), not instruction.negated)

    def _lanes(self, mask: str) -> str:
        match = _MASK_REGISTER.fullmatch(mask)
        if match is None:
            raise SimulationError(f"a mask that is not understood: {mask}")
        return f"lanes({self._variable('x' + mask[2:])})"

    def _operand(self, text: str) -> str:
        self._use((text,))
        return operand(text, self._symbols)

    def _place(self, text: str) -> str:
        self._use((text,))
        return place(text, self._symbols)

    def _use(self, texts: tuple[str, ...]) -> None:
        for text in texts:
            for name in re.findall(r"\b(lr|[sp]\d+)\b", text, re.ASCII):
                self._variable(register(name) or "")

    def _variable(self, name: str) -> str:
        self.variables.add(variable(name))
        return name
