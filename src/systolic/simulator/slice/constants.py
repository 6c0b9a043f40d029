"""Which constants the top-level program hands to the operations that it calls."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.listing import Instruction, Program, is_call, physical

_CALLED = re.compile(r"%([\w.\-]+) = ", re.ASCII)
_ALLOCATION = re.compile(r"#allocation(\d+)", re.ASCII)
_VIRTUAL = re.compile(r"%(\w+)_s\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """An operand of a called operation that is a constant.

    Attributes:
      operation: that it is handed to.
      index: which of its operands it is.
      words: its size.
      place: number of its allocation. Those of one program lie in HBM in this order; two that are alike share one.
    """

    operation: str
    index: int
    words: int
    place: int


def constants(top_level: Program, operands: Mapping[str, Sequence[CallOperand]]) -> Iterator[Constant]:
    """Finds all of them, each once for every operation.

    Args:
      operands: of each called operation.
    """
    definitions: dict[str, list[Instruction]] = {}
    calls: dict[str, Instruction] = {}
    for bundle in top_level.bundles:
        for instruction in bundle.instructions:
            if instruction.dest is not None and "_" in instruction.dest:
                definitions.setdefault(instruction.dest.rsplit("_", 1)[0], []).append(instruction)
            if is_call(instruction) and (called := _CALLED.search(instruction.comment)):
                calls.setdefault(called.group(1), instruction)
    for name, call in calls.items():
        passed = {physical(text): text for text in call.operands if text[0] == "%"}
        for operand in operands.get(name, ()):
            if operand.is_constant and operand.register in passed:
                yield Constant(
                    operation=name,
                    index=operand.index,
                    words=math.prod(operand.shape),
                    place=_place(passed[operand.register], definitions),
                )


def _place(text: str, definitions: Mapping[str, Sequence[Instruction]]) -> int:
    """The number of the allocation from which an address is made; 0 where the constants begin with it."""
    pending, seen = [text], set[str]()
    while pending:
        text = pending.pop()
        named = _ALLOCATION.search(text)
        if named is not None:
            return int(named.group(1))
        for name in _VIRTUAL.findall(text):
            if name not in seen:
                seen.add(name)
                pending += (
                    operand for each in definitions.get(name, ()) if each.opcode != "sld" for operand in each.operands
                )
    return 0
