"""What each scalar instruction does, as a Python expression.

Registers are 32 bits wide and kept as integers from 0 to 2³² − 1; signed and float instructions convert. A value that
is not known is a `values.Unknown`, which goes through arithmetic as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import MASK, as_word
from systolic.simulator.reading.listing import MOVES, Instruction, Program, physical
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

# Instructions without effect on control flow, copies or time. `shalt.err` stops a program whose address is out of
# bounds; `cld` and `cst` move vectors from and to v4's CMEM; `vsetptstate` asks for a clock state; `vsyncset.done`
# writes a bit beside a flag's count, for which no program seen waits; `vtrace` marks a place in the trace; `sdelay`
# (seen without an amount) keeps a load of scalar memory behind the store before it.
IGNORED = frozenset(
    {
        *("sfence", "cfence", "compiler-scheduling-barrier", "set.rngseed", "shalt.err", "cld", "cst", "vsetptstate"),
        *("vsyncset.done", "vtrace", "sdelay"),
    }
)


def flag_names(program: Program) -> frozenset[str]:
    """Allocations that hold sync flags, by how they are used: they, or a register in which one was selected."""
    found: set[str] = set()
    used_registers: set[str] = set()
    choices: list[tuple[str, set[str]]] = []  # register, and the allocations between which it was selected
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            for text in _used_as_flags(instruction):
                named = _ALLOCATION.fullmatch(text)
                if named:
                    found.add(named.group(1))
                elif text[0] == "%":
                    used_registers.add(text)
            if instruction.opcode == "scalar_select" and instruction.dest is not None:
                named = filter(None, map(_ALLOCATION.fullmatch, instruction.operands))
                choices.append((f"%{instruction.dest}", {match.group(1) for match in named}))
    for register, allocations in choices:
        if register in used_registers or not found.isdisjoint(allocations):
            found |= allocations
    return frozenset(found)


def flag_counts(program: Program, flags: frozenset[str]) -> dict[str, int]:
    """How many flags an allocation holds, where that is certain: several are each set at first, by their own addresses.

    An allocation that is mentioned as the flag itself alone, and of which no address is made, holds one.
    """
    offsets: dict[str, set[int]] = {}
    cleared: dict[str, set[int]] = {}
    unclear: set[str] = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            lea = instruction.opcode == "scalar_lea.sflag"
            direct = Counter(() if lea else _used_as_flags(instruction))
            for text, count in Counter(instruction.operands).items():
                named = _ALLOCATION.fullmatch(text)
                if named is None or count > direct[text]:
                    unclear.update(_MENTIONED.findall(text))
                    continue
                name, offset = named.group(1), int(named.group(2) or "0", 0)
                offsets.setdefault(name, set()).add(offset)
                if instruction.opcode == "vsyncpa":
                    cleared.setdefault(name, set()).add(offset)
    found = {name: max(its) + 1 for name, its in offsets.items() if name in flags}
    several = {name: count for name, count in found.items() if count > 1 and len(cleared.get(name, ())) == count}
    return several | {name: 1 for name, count in found.items() if count == 1 and name not in unclear}


def _used_as_flags(instruction: Instruction) -> tuple[str, ...]:
    """Operands that can be nothing but sync flags."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode.startswith(("vsync", "vwait")) or opcode in ("scalar_lea.sflag", "dma.done.wait"):
        return operands[:1]
    if opcode.startswith("dma."):
        return operands[3:5] if opcode == "dma.general" else operands[3:4]
    return ()


def operand(text: str, names: Names) -> str:
    """Writes a register, a number or an allocation's address as Python."""
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
    """Names the variable of a register spilled to `[smem:[#allocation3_spill]]`; None for other memory."""
    match = _SPILL.fullmatch(text)
    return variable(f"m_{match.group(1)}_{match.group(2) or 0}") if match else None


def address(text: str, names: Names) -> str:
    """Writes the address in `[smem:[…]]` as Python: terms added up."""
    inner = text.removeprefix("[smem:[").removesuffix("]]")
    if _ALLOCATION.fullmatch(inner):
        return operand(inner, names)
    terms = [
        number(int(term[1:], 16)) if term.startswith("$0x") else operand(term, names) for term in inner.split(" + ")
    ]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) & {MASK}"


def static_allocation(text: str) -> str | None:
    """Finds the allocation that `[smem:[#allocation8 + $0x1]]` names; None where a register decides."""
    match = _ALLOCATION.fullmatch(text.removeprefix("[smem:[").removesuffix("]]"))
    return match.group(1) if match else None


def _signed(value: str) -> str:
    return f"({value} ^ 0x80000000)" if not value.isdigit() else str(int(value) ^ 0x80000000)


def _binary(template: str) -> Callable[[str, str], str]:
    return lambda a, b: template.format(a=a, b=b, m=MASK)


_ARITHMETIC_SHIFT = "((({a} ^ 0x80000000) - 0x80000000) >> ({b} & 31)) & {m}"
_BINARY: dict[str, Callable[[str, str], str]] = {
    "sadd.s32": _binary("({a} + {b}) & {m}"),
    "ssub.s32": _binary("({a} - {b}) & {m}"),
    "smul.u32": _binary("({a} * {b}) & {m}"),
    "smulhi.u32": _binary("({a} * {b}) >> 32"),
    "sand.u32": _binary("{a} & {b}"),
    "sor.u32": _binary("{a} | {b}"),
    "sxor.u32": _binary("{a} ^ {b}"),
    "sshll.u32": _binary("({a} << ({b} & 31)) & {m}"),
    "sshllo.u32": _binary("((({a} << ({b} & 31)) | ((1 << ({b} & 31)) - 1)) & {m})"),  # ones come in
    "sc.u32": _binary("({a} + {b}) > {m}"),  # the carry of a sum
    "sshrl.u32": _binary("{a} >> ({b} & 31)"),
    "sshra.s32": _binary(_ARITHMETIC_SHIFT),
    "smin.u32": _binary("smaller({a}, {b})"),
    "smax.u32": _binary("larger({a}, {b})"),
    "smin.s32": lambda a, b: f"smaller({_signed(a)}, {_signed(b)}) ^ 0x80000000",
    "smax.s32": lambda a, b: f"larger({_signed(a)}, {_signed(b)}) ^ 0x80000000",
    # Bitwise, since a predicate may be an unknown value, which has no truth.
    "por": _binary("{a} | {b}"),
    "pand": _binary("{a} & {b}"),
    "pnand": _binary("True ^ ({a} & {b})"),
    "pnor": _binary("True ^ ({a} | {b})"),
    "pxor": _binary("{a} ^ {b}"),
    **{
        f"s{name}.f32": _binary(f"float_result({name!r}, {{a}}, {{b}})")
        for name in ("add", "sub", "mul", "div", "min", "max")
    },
}
_COMPARISON = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNARY = {
    **dict.fromkeys(MOVES, "{a}"),
    "pmov": "{a}",
    "pneg": "True ^ {a}",
    "sneg.s32": "-{a} & 0xFFFFFFFF",
    "sclz": "leading_zeros({a})",
    "sfloor.f32": "rounded_float('floor', {a})",
    "sceil.f32": "rounded_float('ceil', {a})",
    "scvt.s32.f32": "float_from_signed({a})",
    "scvt.f32.s32": "signed_from_float({a})",
    "scvt.pr.f32.s32": "signed_from_whole_float({a})",  # v4's; how it rounds is not known
}


def expression(instruction: Instruction, names: Names) -> str | None:
    """Writes what the instruction's destination becomes, as Python over the physical registers.

    None for an instruction that is not scalar arithmetic.

    Raises:
      SimulationError: an operand of a form that is not known.
    """
    opcode, operands = instruction.opcode, instruction.operands
    base = opcode.split(".")[0]
    if base == "scalar_lea":
        a, b = (operand(text, names) for text in operands[:2])
        return f"({a} + {b}) & {MASK}"
    if base == "int_to_ptr":
        return operand(operands[0], names)
    if opcode == "reloc" and operands[0] == ROUTES_WORD:  # no other of the runtime's words decides anything
        return ROUTES_WORD
    # A program that asks for a clock state reads the cycles since it last did so. It asks again after some
    # milliseconds; zero is the answer in repeated calls, which follow sooner.
    if opcode in ("reloc", "cycles_lo.lcc", "cycles_hi.lcc", "srdreg.lcclo", "srdreg.lcchi"):
        return "0"
    if opcode == "scalar_parameter_address":
        return f"parameter({number(int(operands[0]))})"
    if base == "inlined_call_operand":
        return f"operand({quoted(physical('%' + (instruction.dest or '')))})"
    if opcode == "scalar_select" or (opcode in MOVES and operands[0].startswith("(")):
        return _select(operands, names)
    if opcode in _UNARY:
        return _UNARY[opcode].format(a=operand(operands[0], names))
    if opcode in _BINARY:
        a, b = (operand(text, names) for text in operands)
        return _BINARY[opcode](a, b)
    if base == "scmp":
        a, b = (operand(text, names) for text in operands)
        _, relation, kind, *_ = opcode.split(".")
        if kind == "f32":
            return f"float_compare({_COMPARISON[relation]!r}, {a}, {b})"
        if kind == "s32" and relation not in ("eq", "ne"):
            a, b = _signed(a), _signed(b)
        elif kind not in ("s32", "u32"):
            return None
        return f"{a} {_COMPARISON[relation]} {b}"
    return None


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
    """Writes `chosen` where the predicate holds; the predicate itself where it is an unknown value."""
    one_way = f"({chosen}) if {predicate} is True else ({otherwise}) if {predicate} is False"
    unknown = f"{predicate} if {predicate}.__class__ is Unknown"
    return f"({one_way} else {unknown} else picked({predicate}, {chosen}, {otherwise}))"
