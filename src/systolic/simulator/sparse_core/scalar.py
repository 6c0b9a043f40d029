"""What each scalar instruction of a SparseCore does, as a Python expression over its registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import MASK
from systolic.simulator.translating.literals import number, variable

_REGISTER = re.compile(r"(!?)(s\d+|p\d+)", re.ASCII)
_NUMBER = re.compile(r"\$(-?(?:0x[0-9A-Fa-f]+|\d+))", re.ASCII)
_SYMBOL = re.compile(r"\$(\w+)", re.ASCII)
_PLACE = re.compile(r"\[\w+:([^\]]+)\]", re.ASCII)

# Instructions without effect on control flow, streams or time: traces, tags, fences, and flags switched on or off. The
# index that a stream passes over (`ssetifvalue`) is among them: every index of a list counts.
IGNORED = frozenset(
    {
        *(
            "sfence",
            "sfence.sel",
            "sfence.stream.spmem",
            "sfence.stream.hbm",
            "snop",
            "ssetifvalue",
            "ssettag",
            "ssettm",
        ),
        *("ssyncpa.u1", "ssyncset.done", "strace"),
    }
)

# The link register has a name of its own; the others are s0 to s31.
_LINK = "s99"


def operand(text: str, symbols: Mapping[str, int]) -> str:
    """Writes a register, a number or the value of a symbol as Python.

    Raises:
      SimulationError: the operand has another form.
    """
    if text == "lr":
        return variable(_LINK)
    if found := _REGISTER.fullmatch(text):
        return f"(True ^ {variable(found[2])})" if found[1] else variable(found[2])
    if found := _NUMBER.fullmatch(text):
        return number(int(found[1], 0) & MASK)
    if (found := _SYMBOL.fullmatch(text)) and found[1] in symbols:
        return number(symbols[found[1]])
    raise SimulationError(f"operand {text!r} is not understood")


def place(text: str, symbols: Mapping[str, int]) -> str:
    """Writes the address in brackets, such as `[smem:s4+$0x10]`, as Python."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise SimulationError(f"{text!r} is no place in memory")
    terms = [operand(term if term[0] != "0" else f"${term}", symbols) for term in found[1].split("+")]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) & {MASK}"


def register(text: str) -> str | None:
    """Names the variable of a scalar or predicate register; None for any other destination."""
    if text == "lr":
        return variable(_LINK)
    return variable(text) if re.fullmatch(r"[sp]\d+", text, re.ASCII) else None


def _binary(template: str) -> Callable[[str, str], str]:
    return lambda a, b: template.format(a=a, b=b, m=MASK)


def _signed(value: str) -> str:
    return f"({value} ^ 0x80000000)"


_ARITHMETIC: dict[str, Callable[[str, str], str]] = {
    "sadd.s32": _binary("({a} + {b}) & {m}"),
    "ssub.s32": _binary("({a} - {b}) & {m}"),
    "smul.u32": _binary("({a} * {b}) & {m}"),
    "smulhi.u32": _binary("({a} * {b}) >> 32"),
    "sand.u32": _binary("{a} & {b}"),
    "sor.u32": _binary("{a} | {b}"),
    "sxor.u32": _binary("{a} ^ {b}"),
    "sshll.u32": _binary("({a} << ({b} & 31)) & {m}"),
    "sshllo.u32": _binary("((({a} << ({b} & 31)) | ((1 << ({b} & 31)) - 1)) & {m})"),  # ones come in
    "sshrl.u32": _binary("{a} >> ({b} & 31)"),
    "sshra.s32": _binary("((({a} ^ 0x80000000) - 0x80000000) >> ({b} & 31)) & {m}"),
    "smin.u32": _binary("smaller({a}, {b})"),
    "smax.u32": _binary("larger({a}, {b})"),
    "smin.s32": lambda a, b: f"smaller({_signed(a)}, {_signed(b)}) ^ 0x80000000",
    "smax.s32": lambda a, b: f"larger({_signed(a)}, {_signed(b)}) ^ 0x80000000",
}
_MOVES = frozenset({"smov.u32", "smov.s32", "simm.s32", "simm.u32"})
# Of truth values, also where one of them is not known: true or anything is true.
_LOGIC = {"por": "{a} | {b}", "pand": "{a} & {b}", "pmov": "{a}"}
_TRUTH = {"$0x0": "False", "$0x1": "True"}
_COMPARISON = re.compile(r"s(eq|ne|lt|le|gt|ge)\.(s32|u32)")
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def expression(opcode: str, operands: tuple[str, ...], symbols: Mapping[str, int]) -> str | None:
    """Writes what a register becomes; None for an instruction that is no scalar arithmetic."""
    if opcode in _MOVES:
        return operand(operands[0], symbols)
    if opcode in _LOGIC:
        a, b, *_ = (*(_TRUTH.get(text) or operand(text, symbols) for text in operands), "")
        return _LOGIC[opcode].format(a=a, b=b)
    if opcode in _ARITHMETIC:
        a, b = (operand(text, symbols) for text in operands)
        return _ARITHMETIC[opcode](a, b)
    if found := _COMPARISON.fullmatch(opcode):
        a, b = (operand(text, symbols) for text in operands)
        if found[2] == "s32" and found[1] not in ("eq", "ne"):
            a, b = _signed(a), _signed(b)
        return f"{a} {_RELATIONS[found[1]]} {b}"
    return None
