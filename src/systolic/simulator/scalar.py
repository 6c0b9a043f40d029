"""What each scalar instruction does, as a Python expression.

Registers are 32 bits wide and kept as integers from 0 to 2³² − 1; signed instructions convert. A value that only the
vector side knows is `None`: to compute with it fails, which is reported as a dependence on data.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from systolic.simulator.copies import FLAG_BITS
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Instruction, Program

MASK = 0xFFFFFFFF
_REGISTER = re.compile(r"(!?)%\w+_((?:s|p|v|vm)\d+)$", re.ASCII)
_NUMBER = re.compile(r"-?\d+$|0x[0-9a-f]+$", re.ASCII)
_FLOAT = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?$", re.ASCII)
_ALLOCATION = re.compile(r"\[?#(\w+)(?: \+ \$(0x[0-9a-f]+))?\]?$", re.ASCII)

# Distance between the made-up addresses of two allocations. Only that they do not overlap matters: scalar memory and
# sync flags are the only spaces whose addresses decide anything here.
_ALLOCATION_SPAN = 1 << 20
_FLAG_SPAN = 1 << 6

# Instructions without effect on control flow, copies or time. `shalt.err` stops a program whose address is out of
# bounds; `cld` and `cst` move vectors from and to v4's CMEM.
IGNORED = frozenset({"sfence", "cfence", "compiler-scheduling-barrier", "set.rngseed", "shalt.err", "cld", "cst"})


class Names:
    """Addresses for the allocations that a program mentions by name.

    Args:
      flags: names of sync flags. Programs pack their numbers into `FLAG_BITS` bits, so these stay small.
    """

    def __init__(self, flags: frozenset[str] = frozenset()) -> None:
        self._flags = flags
        self.addresses: dict[str, int] = {}

    def address(self, name: str, offset: int = 0) -> int:
        """The address `offset` words or flags into the allocation of that name.

        Raises:
          SimulationError: there are more sync flags than numbers for them.
        """
        if name not in self.addresses:
            is_flag = name in self._flags
            before = sum((known in self._flags) == is_flag for known in self.addresses)
            base = (before + 1) * (_FLAG_SPAN if is_flag else _ALLOCATION_SPAN)
            if is_flag and base + _FLAG_SPAN > 1 << FLAG_BITS:
                raise SimulationError(f"no number is left for the sync flags {name}")
            self.addresses[name] = base
        return self.addresses[name] + offset


def flag_names(program: Program) -> frozenset[str]:
    """Allocations that hold sync flags, by how they are used."""
    found = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            opcode, operands = instruction.opcode, instruction.operands
            if opcode.startswith(("vsync", "vwait")) or opcode in ("scalar_lea.sflag", "dma.done.wait"):
                used = operands[:1]
            elif opcode.startswith("dma."):
                used = operands[3:5] if opcode == "dma.general" else operands[3:4]
            else:
                continue
            found.update(match.group(1) for match in map(_ALLOCATION.match, used) if match)
    return frozenset(found)


def operand(text: str, names: Names) -> str:
    """A register, a number or an allocation's address as Python."""
    text = text.rsplit("] ", 1)[-1] if text.startswith("[resolvable") else text
    text = text.split(" [#")[0]  # what follows in brackets is an annotation
    register = _REGISTER.match(text)
    if register:
        return f"not {register.group(2)}" if register.group(1) else register.group(2)
    if _NUMBER.match(text):
        return str(int(text, 0) & MASK)
    if _FLOAT.match(text):
        return str(int.from_bytes(struct.pack("<f", float(text)), "little"))
    allocation = _ALLOCATION.match(text)
    if allocation:
        return str(names.address(allocation.group(1), int(allocation.group(2) or "0", 16)))
    raise SimulationError(f"operand {text!r} is not understood")


def spill_slot(text: str) -> str | None:
    """The variable for a register spilled to scalar memory, `[smem:[#allocation3_spill]]`; None for other memory."""
    match = re.match(r"\[smem:\[#(\w+_spill)(?: \+ \$(0x[0-9a-f]+))?\]\]$", text)
    return f"m_{match.group(1)}_{match.group(2) or 0}" if match else None


def address(text: str, names: Names) -> str:
    """The address in `[smem:[…]]` as Python: terms added up."""
    inner = text.removeprefix("[smem:[").removesuffix("]]")
    whole = _ALLOCATION.match(inner)
    if whole:
        return operand(inner, names)
    terms = [str(int(term[1:], 16)) if term.startswith("$0x") else operand(term, names) for term in inner.split(" + ")]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) & {MASK}"


def static_allocation(text: str) -> str | None:
    """The allocation that `[smem:[#allocation8 + $0x1]]` names; None where a register decides."""
    match = _ALLOCATION.match(text.removeprefix("[smem:[").removesuffix("]]"))
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
    "sshrl.u32": _binary("{a} >> ({b} & 31)"),
    "sshra.s32": _binary(_ARITHMETIC_SHIFT),
    "smin.u32": _binary("min({a}, {b})"),
    "smax.u32": _binary("max({a}, {b})"),
    "smin.s32": lambda a, b: f"min({_signed(a)}, {_signed(b)}) ^ 0x80000000",
    "smax.s32": lambda a, b: f"max({_signed(a)}, {_signed(b)}) ^ 0x80000000",
    "por": _binary("{a} or {b}"),
    "pand": _binary("{a} and {b}"),
    "pnand": _binary("not ({a} and {b})"),
    "pnor": _binary("not ({a} or {b})"),
    "pxor": _binary("({a}) != ({b})"),
}
_COMPARISON = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNARY = {"smov": "{a}", "pmov": "{a}", "pneg": "not ({a})", "sneg.s32": "-{a} & 0xFFFFFFFF"}


def expression(instruction: Instruction, names: Names) -> str | None:
    """What the instruction's destination becomes, as Python over the physical registers.

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
    if opcode in ("reloc", "scalar_parameter_address"):
        return "0"
    if base == "inlined_call_operand":
        # An argument's address; where it is a scalar in SMEM, its value is fetched through that address.
        return str(names.address(f"{opcode} {instruction.dest}"))
    if opcode == "scalar_select" or (opcode == "smov" and operands[0].startswith("(")):
        return _select(operands, names)
    if opcode in _UNARY:
        return _UNARY[opcode].format(a=operand(operands[0], names))
    if opcode in _BINARY:
        a, b = (operand(text, names) for text in operands)
        return _BINARY[opcode](a, b)
    if base == "scmp":
        a, b = (operand(text, names) for text in operands)
        _, relation, kind, *_ = opcode.split(".")
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
    parts = [operand(text, names) for text in (chosen, predicate, otherwise)]
    return "{} if {} else {}".format(*parts)
