"""Translate scalar instructions into Python expressions.

Registers are 32 bits wide and kept as integers from 0 to 2³² − 1; signed and float instructions convert. A value that
is not known is a `values.Unknown`, which goes through arithmetic as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import MASK, as_word
from systolic.simulator.opcode_traits import Opcode
from systolic.simulator.reading.listing import Instruction, Program, physical
from systolic.simulator.translating.literals import number, quoted, variable
from systolic.simulator.translating.names import Names

_REGISTER = re.compile(r"(!?)(%\w+_(?:s|p|v)\d+)", re.ASCII)
_NUMBER = re.compile(r"-?\d+|0x[0-9a-f]+", re.ASCII)
_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)", re.ASCII)
_MENTIONED = re.compile(r"#(\w+)", re.ASCII)
_ALLOCATION = re.compile(r"\[?#(\w+)(?: \+ \$(0x[0-9a-f]+))?\]?", re.ASCII)
_SPILL = re.compile(r"\[smem:\[#(\w+_spill)(?: \+ \$(0x[0-9a-f]+))?\]\]", re.ASCII)

# Which of the runtime's words points to a chip's table of routes; see `slice/route_tables.py`.
ROUTES_WORD = "4"


def flag_names(program: Program) -> frozenset[str]:
    """Return allocations that hold sync flags, by their use: directly, or by a register that selected one."""
    result: set[str] = set()
    used_registers: set[str] = set()
    choices: list[tuple[str, set[str]]] = []  # register, and the allocations between which it was selected
    for instruction in program.instructions:
        for text in instruction.operands[instruction.traits.flags]:
            named = _ALLOCATION.fullmatch(text)
            if named:
                result.add(named.group(1))
            elif text[0] == "%":
                used_registers.add(text)
        if instruction.traits.kind == "select" and instruction.dest is not None:
            named = filter(None, map(_ALLOCATION.fullmatch, instruction.operands))
            choices.append((f"%{instruction.dest}", {match.group(1) for match in named}))
    for register, allocations in choices:
        if register in used_registers or not result.isdisjoint(allocations):
            result |= allocations
    return frozenset(result)


def flag_counts(program: Program, flags: frozenset[str]) -> dict[str, int]:
    """Return the number of flags of each allocation if it is certain: several are set at first, by their addresses.

    An allocation that is only mentioned as the flag itself, never as an address, holds one.
    """
    offsets: dict[str, set[int]] = {}
    cleared: dict[str, set[int]] = {}
    unclear: set[str] = set()
    for instruction in program.instructions:
        traits = instruction.traits
        if "#" not in instruction.text:  # no allocation is mentioned
            continue
        # An address made from a flag's may be another flag's.
        direct = Counter(() if traits.kind == "address" else instruction.operands[traits.flags])
        for text, count in Counter(instruction.operands).items():
            named = _ALLOCATION.fullmatch(text)
            if named is None or count > direct[text]:
                unclear.update(_MENTIONED.findall(text))
                continue
            name, offset = named.group(1), int(named.group(2) or "0", 0)
            offsets.setdefault(name, set()).add(offset)
            if instruction.opcode == "vsyncpa":
                cleared.setdefault(name, set()).add(offset)
    result = {name: max(words) + 1 for name, words in offsets.items() if name in flags}
    several = {name: count for name, count in result.items() if count > 1 and len(cleared.get(name, ())) == count}
    return several | {name: 1 for name, count in result.items() if count == 1 and name not in unclear}


def operand(text: str, names: Names) -> str:
    text = text.rsplit("] ", 1)[-1] if text.startswith("[resolvable") else text
    text = text.split(" [#")[0]  # what follows in brackets is an annotation
    register = _REGISTER.fullmatch(text)
    if register:
        name = variable(physical(register.group(2)))
        return f"(True ^ {name})" if register.group(1) else name
    if _NUMBER.fullmatch(text):
        return number(int(text, 0) & MASK)
    if _FLOAT.fullmatch(text):
        return number(as_word(float(text)))
    allocation = _ALLOCATION.fullmatch(text)
    if allocation:
        return number(names.address(allocation.group(1), int(allocation.group(2) or "0", 16)))
    raise SimulationError(f"operand {text!r} is not understood")


def spill_slot(text: str) -> str | None:
    """Return the variable of a register spilled to `[smem:[#allocation3_spill]]`; None for other memory."""
    match = _SPILL.fullmatch(text)
    return variable(f"m_{match.group(1)}_{match.group(2) or 0}") if match else None


def address(text: str, names: Names) -> str:
    """Write the address in `[smem:[…]]` as Python: terms added up."""
    inner = text.removeprefix("[smem:[").removesuffix("]]")
    if _ALLOCATION.fullmatch(inner):
        return operand(inner, names)
    terms = [
        number(int(term[1:], 16)) if term.startswith("$0x") else operand(term, names) for term in inner.split(" + ")
    ]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) & {MASK}"


def static_allocation(text: str) -> str | None:
    """Return the allocation of `[smem:[#allocation8 + $0x1]]`; None if a register decides."""
    match = _ALLOCATION.fullmatch(text.removeprefix("[smem:[").removesuffix("]]"))
    return match.group(1) if match else None


def signed(value: str) -> str:
    """Write a word of Python code as a signed number plus 2³¹: compared, such words are in the order of the numbers."""
    return f"({value} ^ 0x80000000)" if not value.isdigit() else str(int(value) ^ 0x80000000)


def arithmetic(traits: Opcode, operands: Sequence[str], write: Callable[[str], str]) -> str:
    """Write an opcode's expression; `write` turns an operand into Python code."""
    expression = traits.expression
    if "b}" in expression:
        a, b = map(write, operands[traits.reads])
        return expression.format(a=a, b=b, sa=signed(a), sb=signed(b), m=MASK)
    return expression.format(a=write(operands[0]), m=MASK) if "{" in expression else expression


def expression(instruction: Instruction, names: Names) -> str | None:
    """Write the result of the instruction as Python over the physical registers.

    None for an instruction that is not scalar arithmetic.

    Raises:
      SimulationError: an operand of a form that is not known.
    """
    operands, traits = instruction.operands, instruction.traits
    if traits.kind == "runtime word":  # no other of the runtime's words decides anything
        return ROUTES_WORD if operands[0] == ROUTES_WORD else "0"
    if traits.kind == "parameter":
        return f"parameter({number(int(operands[0]))})"
    if traits.kind == "operand":
        return f"operand({quoted(physical('%' + (instruction.dest or '')))})"
    if traits.kind == "select" or (traits.kind == "move" and operands[0].startswith("(")):
        return _select(operands, names)
    return arithmetic(traits, operands, lambda text: operand(text, names)) if traits.expression else None


def _select(operands: tuple[str, ...], names: Names) -> str:
    if operands[0].startswith("("):  # smov (p, a), b keeps a unless p
        predicate, otherwise = operands[0][1:-1].split(", ", 1)
        chosen = operands[1]
    else:
        predicate, chosen, otherwise = operands
    if predicate.startswith("!"):
        predicate, chosen, otherwise = predicate[1:], otherwise, chosen
    return choice(operand(predicate, names), operand(chosen, names), operand(otherwise, names))


def choice(predicate: str, chosen: str, otherwise: str) -> str:
    """Write `chosen` if the predicate holds; the predicate itself if it is an unknown value."""
    one_way = f"({chosen}) if {predicate} is True else ({otherwise}) if {predicate} is False"
    unknown = f"{predicate} if {predicate}.__class__ is Unknown"
    return f"({one_way} else {unknown} else picked({predicate}, {chosen}, {otherwise}))"
