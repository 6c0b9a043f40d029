"""Make code of a program's registers, names and predicates: variables, addresses and conditions."""

from __future__ import annotations

import re

from systolic.simulator.reading.listing import Instruction, Predicate, physical, registers
from systolic.simulator.translating import literals, scalar
from systolic.simulator.translating.names import Names

_NAMED = re.compile(r"%(\d+)", re.ASCII)


class Mentions:
    """Make code of instructions' operands, and collect the variables.

    Args:
      names: addresses of the program's names.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.variables: set[str] = set()

    def dest(self, instruction: Instruction) -> str | None:
        """Return the variable of an instruction's result; None: it has none."""
        if instruction.dest is None:
            return None
        if "_" in instruction.dest:
            return self.variable(physical(instruction.dest))
        # A division's result is a list: it has names of its own, so that no arithmetic uses it.
        return self.variable(("d" if instruction.traits.kind == "division" else "x") + instruction.dest)

    def variable(self, name: str) -> str:
        self.variables.add(literals.variable(name))
        return name

    def use(self, text: str) -> None:
        for name in registers(text):
            self.variable(name)

    def operand(self, text: str) -> str:
        self.use(text)
        named = _NAMED.fullmatch(text)
        return self.variable(f"x{named.group(1)}") if named else scalar.operand(text, self.names)

    def condition(self, predicate: Predicate) -> str:
        """Make code that is true if the predicate holds."""
        if predicate.register is None:
            return str(not predicate.never)
        register = self.variable(predicate.register)
        return f"not {register}" if predicate.negated else register

    def truth(self, predicate: Predicate) -> str:
        """Make code of the predicate's value, which may be unknown, or differ between devices."""
        if predicate.register is None:
            return str(not predicate.never)
        register = self.variable(predicate.register)
        return f"True ^ {register}" if predicate.negated else register

    def own(self, text: str) -> str:
        """Make code of an operand of a device's own work: with a value per device or round, the first one's."""
        code = self.operand(text)
        return self._own(code, "int") if code.isidentifier() else code

    def _own(self, code: str, kind: str) -> str:
        return f"({code} if {code}.__class__ is {kind} else own({code}))"

    def guarded(
        self, instruction: Instruction, code: list[str], *, is_own: bool = False, is_sent: bool = False
    ) -> list[str]:
        """Run code only if the instruction's predicate holds.

        Where devices differ, the first one decides on its own work, and any one on what is sent.
        """
        predicate = instruction.predicate
        if predicate is None or not code:
            return code
        if predicate.register is None:
            return [] if predicate.never else code
        condition = self.condition(predicate)
        if is_own:
            register = self.variable(predicate.register)
            condition = "not " * predicate.negated + self._own(register, "bool")
        elif is_sent:
            register, truth = self.variable(predicate.register), self.truth(predicate)
            condition = f"({condition}) if {register}.__class__ is bool else on_any({truth})"
        return [f"if {condition}:", *(f"    {line}" for line in code)]
