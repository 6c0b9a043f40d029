"""Translate one bundle into Python code: all its reads come before all its writes."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.listing import Bundle, Instruction
from systolic.simulator.translating.events import EventCode
from systolic.simulator.translating.literals import number, quoted
from systolic.simulator.translating.mentions import Mentions
from systolic.simulator.translating.scalar import address, choice, expression, spill_slot

_NAMED = re.compile(r"%(\d+)", re.ASCII)

# Results of a division, by its comment: quotient, remainder, or both in this order.
_ASKED = {"kRem": "[1:]", "kDiv": "[:1]", "kDivAndRem": ""}

# Variable, value, and the instruction whose predicate says whether; None: the value says it itself.
_Assign = tuple[str, str, Instruction | None]


class BundleCode:
    """Translates bundles of one program.

    Args:
      mentions: makes code of registers, names and predicates.
      events: makes code of instructions that take time of their own.
      alive: `id`s of the instructions that matter.
    """

    def __init__(self, mentions: Mentions, events: EventCode, alive: Set[int]) -> None:
        self._mentions = mentions
        self._operand, self._dest = mentions.operand, mentions.dest
        self._events = events
        self._alive = alive

    def events(self, bundle: Bundle) -> list[str]:
        """Make code of instructions that take time of their own: copies, waits, calls, barriers."""
        code: list[str] = []
        for instruction in bundle.instructions:
            if id(instruction) in self._alive and instruction.traits.latency == "event":
                code += self._events.guarded(instruction, bundle)
        return code

    def rest(self, bundle: Bundle) -> list[str]:
        """Make code of all other instructions except the MXUs'."""
        before: list[str] = []  # effects that read the registers as they were
        assigns: list[_Assign] = []
        stores: list[_Assign] = []  # after the loads of the same bundle
        aliases: list[str] = []
        for instruction in bundle.instructions:
            if id(instruction) not in self._alive:
                _check_harmless(instruction)
            elif instruction.traits.latency == "issue":
                self._scalar(instruction, before, assigns, stores, aliases)
        return before + self._assignments([*assigns, *stores]) + aliases

    # ---- instructions that only compute ----

    def _scalar(
        self,
        instruction: Instruction,
        before: list[str],
        assigns: list[_Assign],
        stores: list[_Assign],
        aliases: list[str],
    ) -> None:
        kind, operands = instruction.traits.kind, instruction.operands
        dest = self._dest(instruction)
        if kind == "branch":
            if instruction.predicate is not None:
                before.append(f"jump = {self._mentions.truth(instruction.predicate)}")
        elif kind == "add to flag":
            before += self._flag("add", instruction)
        elif kind == "set flag":
            before += self._flag("put", instruction)
        elif kind == "store":
            place, value = operands[0], self._operand(operands[1])
            slot = spill_slot(place)
            if slot is not None:
                self._mentions.variables.add(slot)
                assigns.append((slot, value, instruction))
            else:
                self._mentions.use(place)
                self._mentions.variables.add("_")
                stores += self._store(f"{address(place, self._mentions.names)}, {value}", instruction)
        elif kind == "load":
            if dest is None:
                raise SimulationError(f"a load into no register: {instruction.text}")
            slot = spill_slot(operands[0])
            if slot is not None:
                self._mentions.variables.add(slot)
            self._mentions.use(operands[0])
            value = slot or f"load({address(operands[0], self._mentions.names)}, {quoted(instruction.comment)})"
            assigns.append((dest, value, instruction))
        elif kind == "push":
            assigns.append((dest or "_", f"pushed({self._operand(operands[0])})", instruction))
        elif kind == "vector move":
            value = number(int(operands[0])) if re.fullmatch(r"\d+", operands[0], re.ASCII) else "vector"
            assigns.append((dest or "_", value, instruction))
        elif kind == "vector load":
            self._mentions.use(operands[0])
            # Behind the address stand a stride between sublanes ("ss:") and a mask of them ("sm:"): lane 0 stays.
            place = re.split(r"\] s[sm]:", operands[0].replace("[vmem:", "[smem:"))[0] + "]]"
            assigns.append((dest or "_", f"word({address(place, self._mentions.names)})", instruction))
        elif kind == "read flag":
            assigns.append((dest or "_", f"count(t, {self._mentions.own(operands[0])})", instruction))
        elif kind in ("division", "division pop", "pop"):
            self._queued(instruction, assigns)
        else:
            value = expression(instruction, self._mentions.names)
            if value is None or dest is None:
                if kind == "ignored":
                    return
                raise SimulationError(f"not understood: {instruction.text}")
            for text in operands:
                self._mentions.use(text)
            if kind == "pointer":
                if value != dest:
                    aliases += self._mentions.guarded(instruction, [f"{dest} = {value}"])
            else:
                assigns.append((dest, value, instruction))

    def _flag(self, call: str, instruction: Instruction) -> list[str]:
        flag, amount = (self._mentions.own(text) for text in instruction.operands[:2])
        return self._mentions.guarded(instruction, [f"{call}({flag}, {amount})"], is_own=True)

    def _store(self, what: str, instruction: Instruction) -> list[_Assign]:
        """Store if the predicate holds: with a predicate per device, on the devices where it does."""
        predicate = instruction.predicate
        if predicate is None or predicate.register is None:
            return [("_", f"store({what})", instruction)]
        register = self._mentions.variable(predicate.register)
        holds, fails = ("False", "True") if predicate.negated else ("True", "False")
        on_some = f"store_on_some({self._mentions.truth(predicate)}, {what})"
        return [("_", f"(store({what}) if {register} is {holds} else _ if {register} is {fails} else {on_some})", None)]

    def _queued(self, instruction: Instruction, assigns: list[_Assign]) -> None:
        """Translate divisions and pushes of the vector side: a later instruction fetches their results."""
        dest = self._dest(instruction)
        if dest is None:
            raise SimulationError(f"a result in no register: {instruction.text}")
        if instruction.traits.kind == "division":
            if dest[0] != "d":
                raise SimulationError(f"a division into a register: {instruction.text}")
            a, b = (self._operand(text) for text in instruction.operands)
            both = f"[{a} // {b}, {a} % {b}]" if instruction.opcode.endswith("u32") else f"[*signed_division({a}, {b})]"
            # Behind its place in the source, where the kernel was compiled with those: loc("kernel.py":45:21) :: kRem
            which = _ASKED.get(instruction.comment.rpartition("::")[2].strip())
            if which is None:
                raise SimulationError(f"a division of which it is not said what is asked: {instruction.text}")
            assigns.append((dest, both + which, instruction))
            return
        if instruction.traits.kind == "division pop":
            left = _NAMED.fullmatch(instruction.operands[0])
            if left is None:
                raise SimulationError(f"a result of no division: {instruction.text}")
            assigns.append((dest, f"{self._mentions.variable('d' + left.group(1))}.pop(0)", instruction))
        else:
            assigns.append((dest, self._operand(instruction.operands[0]), instruction))

    def _assignments(self, assigns: Sequence[_Assign]) -> list[str]:
        """Assign everything at once if that shows that all reads of a bundle come before its writes."""
        pairs = []
        for dest, value, instruction in assigns:
            predicate = instruction.predicate if instruction is not None else None
            if predicate is not None and predicate.register is None and predicate.never:
                continue
            if predicate is not None and predicate.register is not None:
                pair = (dest, f"({value})") if predicate.negated else (f"({value})", dest)
                value = choice(self._mentions.variable(predicate.register), *pair)
            pairs.append((dest, value))
        written: set[str] = set()
        for dest, value in pairs:
            if written & set(re.findall(r"\w+", value)):
                targets = ", ".join(dest for dest, _ in pairs)
                return [f"{targets} = {', '.join(value for _, value in pairs)}"]
            written.add(dest)
        return [f"{dest} = {value}" for dest, value in pairs]


def _check_harmless(instruction: Instruction) -> None:
    """Check that an instruction that decides nothing only writes a register or scalar memory."""
    traits = instruction.traits
    if instruction.dest is None and not traits.is_vector and traits.kind not in ("ignored", "store"):
        raise SimulationError(f"not understood: {instruction.text}")
