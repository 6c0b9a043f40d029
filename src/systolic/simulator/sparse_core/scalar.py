"""Scalar instructions of a SparseCore, as Python expressions over its registers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import MASK
from systolic.simulator.opcode_traits import Opcode
from systolic.simulator.translating.literals import number, variable
from systolic.simulator.translating.scalar import arithmetic

_REGISTER = re.compile(r"(!?)(s\d+|p\d+)", re.ASCII)
_NUMBER = re.compile(r"\$(-?(?:0x[0-9A-Fa-f]+|\d+))", re.ASCII)
_SYMBOL = re.compile(r"\$(\w+)", re.ASCII)
_PLACE = re.compile(r"\[\w+:([^\]]+)\]", re.ASCII)

# The link register has a name of its own; the others are s0 to s31.
_LINK = "s99"


def operand(text: str, symbols: Mapping[str, int]) -> str:
    """Write a register, a number or a symbol's value as Python; raise SimulationError for another operand."""
    if text == "lr":
        return variable(_LINK)
    if match := _REGISTER.fullmatch(text):
        return f"(True ^ {variable(match[2])})" if match[1] else variable(match[2])
    if match := _NUMBER.fullmatch(text):
        return number(int(match[1], 0) & MASK)
    if (match := _SYMBOL.fullmatch(text)) and match[1] in symbols:
        return number(symbols[match[1]])
    if text in symbols:  # a table's name has no sign before it
        return number(symbols[text])
    raise SimulationError(f"operand {text!r} is not understood")


def place(text: str, symbols: Mapping[str, int]) -> str:
    """Write the address in brackets, such as `[smem:s4+$0x10]`, as Python."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise SimulationError(f"{text!r} is no place in memory")
    terms = [operand(term if term[0] != "0" else f"${term}", symbols) for term in match[1].split("+")]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) & {MASK}"


def register(text: str) -> str | None:
    """Return the variable of a scalar or predicate register; None for any other destination."""
    if text == "lr":
        return variable(_LINK)
    return variable(text) if re.fullmatch(r"[sp]\d+", text, re.ASCII) else None


# Of truth values, also where one of them is not known: true or anything is true.
_TRUTH = {"$0x0": "False", "$0x1": "True"}


def expression(traits: Opcode, operands: tuple[str, ...], symbols: Mapping[str, int]) -> str:
    """Write an opcode's result by its expression."""
    truth = _TRUTH if traits.name[0] == "p" else {}
    return arithmetic(traits, operands, lambda text: truth.get(text) or operand(text, symbols))
