"""A check that finds most mistakes of a reader of listings, before anything is executed.

Every use of a register names the value that is meant: `%s12_s3` is virtual register s12 in physical register s3. So
the values that can be in s3 at that place, along every path through the basic blocks as they were read, have to
include s12. A delay slot too many, a region's start misplaced or a branch misread moves some use behind another
definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from systolic.simulator.blocks import Block
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Bundle, Instruction, Program

_USE = re.compile(r"%((?:s|p)?\w*?)_((?:s|p)\d+)\b", re.ASCII)

_Values = dict[str, frozenset[str]]  # physical register → virtual registers that may be in it


def check_registers(program: Program, blocks: Sequence[Block]) -> None:
    """Compares every use of a scalar or predicate register with what can have been written there.

    Raises:
      SimulationError: a use that no path to it has defined; the message quotes the line.
    """
    entries = _entry_values(program, blocks)
    for number, block in enumerate(blocks):
        values = entries[number]
        if values is None:  # no path leads here
            continue
        state = dict(values)
        for bundle in program.bundles[block.first : block.last + 1]:
            _check_bundle(program, bundle, state)
            _apply(bundle, state)


def _entry_values(program: Program, blocks: Sequence[Block]) -> list[_Values | None]:
    entries: list[_Values | None] = [None] * len(blocks)
    entries[0] = {}
    pending = [0]
    while pending:
        number = pending.pop()
        block = blocks[number]
        state = dict(entries[number] or {})
        for bundle in program.bundles[block.first : block.last + 1]:
            _apply(bundle, state)
        for successor in (block.taken, block.following):
            if successor is None:
                continue
            known = entries[successor]
            merged = dict(state) if known is None else dict(known)
            if known is not None:
                for register, names in state.items():
                    merged[register] = merged.get(register, frozenset()) | names
            if merged != known:
                entries[successor] = merged
                pending.append(successor)
    return entries


def _apply(bundle: Bundle, state: _Values) -> None:
    for instruction in _in_order(bundle):
        if instruction.dest is None or "_" not in instruction.dest:
            continue
        name, register = instruction.dest.rsplit("_", 1)
        kept = state.get(register, frozenset()) if instruction.predicate is not None else frozenset()
        state[register] = kept | {name}


def _in_order(bundle: Bundle) -> Iterator[Instruction]:
    """Writes of a bundle in the order in which they take effect: `sphi` first, `int_to_ptr` last."""
    for rank in (0, 1, 2):
        for instruction in bundle.instructions:
            late = 2 if instruction.opcode.startswith("int_to_ptr") else 1
            if rank == (0 if instruction.opcode == "sphi" else late):
                yield instruction


def _check_bundle(program: Program, bundle: Bundle, state: _Values) -> None:
    before = dict(state)
    for instruction in bundle.instructions:
        if instruction.opcode == "sphi":
            _check(program, bundle, instruction, before, some=True)
    for instruction in bundle.instructions:
        if instruction.opcode == "sphi" and instruction.dest is not None:
            name, register = instruction.dest.rsplit("_", 1)
            before[register] = frozenset({name})
    written = dict(before)
    for instruction in bundle.instructions:
        if instruction.opcode == "sphi":
            continue
        if instruction.opcode.startswith("int_to_ptr"):
            after = dict(state)
            _apply(bundle, after)
            _check(program, bundle, instruction, _joined(written, after, bundle), some=False)
        else:
            _check(program, bundle, instruction, before, some=False)


def _joined(before: _Values, after: _Values, bundle: Bundle) -> _Values:
    """What `int_to_ptr` can read: what was there, and what its own bundle has written."""
    joined = dict(before)
    for instruction in bundle.instructions:
        if instruction.dest is not None and "_" in instruction.dest:
            name, register = instruction.dest.rsplit("_", 1)
            joined[register] = joined.get(register, frozenset()) | {name}
    return joined


def _check(program: Program, bundle: Bundle, instruction: Instruction, values: _Values, *, some: bool) -> None:
    uses = [found for text in instruction.operands for found in _USE.findall(text)]
    known = [(name, register) for name, register in uses if values.get(register)]
    right = [name in values[register] for name, register in known]
    if not right or all(right) or (some and any(right)):
        return
    name, register = known[right.index(False)]
    raise SimulationError(
        f"{program.name}, line {bundle.line}: {name} is read from {register}, which holds "
        f"{' or '.join(sorted(values[register]))} here: {instruction.text[:200]}"
    )
