"""Barriers of all devices: each signals the first device, which waits for all others and then signals each of them.

The first device thus differs from the others, so one representative device cannot execute it. Its begin and end are
read from the listing, so that `slice/one_for_all.py` can leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from systolic.simulator.opcode_traits import Kind
from systolic.simulator.reading.blocks import Block
from systolic.simulator.reading.listing import Instruction, Program, physical, registers

_WAIT = "global-barrier-wait"
# A barrier's own acts. Everything else in its blocks only writes registers.
_BARRIER_KINDS = ("signal", "add to flag", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBarrier:
    """A barrier of all devices in a listing."""

    end: int  # the block after it
    others: int  # number of devices that the first one waits for
    signal: Instruction  # the instruction by which others signal the first device
    before_cycles: int  # until a device has signalled the first one
    between_cycles: int  # until that one, which has all signals, begins to signal the others
    each_cycles: int  # from one of its signals to the next
    after_cycles: int  # after a device's own wait
    waits: int = 2  # how many waits those cycles do not hold


def global_barriers(program: Program, blocks: Sequence[Block]) -> dict[int, GlobalBarrier]:
    """Find barriers of the one known form, by the block that ends with the first test for the first device."""
    result: dict[int, GlobalBarrier] = {}
    for first in range(len(blocks) - 7):
        barrier = _barrier_at(first, program, blocks)
        if barrier is not None:
            result[first] = barrier
    return result


def _barrier_at(first: int, program: Program, blocks: Sequence[Block]) -> GlobalBarrier | None:
    signal, ask, wait, loop, again, own_wait, end = range(first + 1, first + 8)
    waits = [list(_of_kind(program, blocks[block], "wait")) for block in (wait, own_wait)]
    if any(len(wait) != 1 or _WAIT not in wait[0].comment for wait in waits):
        return None
    (all_there,), (told,) = waits
    flag = all_there.operands[0]
    signals = [list(_of_kind(program, blocks[block], "signal")) for block in (signal, loop)]
    joins = (
        (blocks[first].taken, blocks[first].following) == (ask, signal)
        and _leads(blocks[signal], ask)
        and (blocks[ask].taken, blocks[ask].following) == (again, wait)
        and _leads(blocks[wait], loop)
        and (blocks[loop].taken, blocks[loop].following) == (loop, again)
        and (blocks[again].taken, blocks[again].following) == (end, own_wait)
        and _leads(blocks[own_wait], end)
    )
    if not joins or any(len(signal) != 1 for signal in signals) or told.operands != (flag, "1"):
        return None
    inside = [instruction for number in range(signal, end) for instruction in _instructions(program, blocks[number])]
    if not all(_is_allowed(instruction) for instruction in inside) or not all_there.operands[1].isdecimal():
        return None
    if _needed(
        program,
        blocks,
        end,
        {physical(f"%{instruction.dest}") for instruction in inside if instruction.dest and "_" in instruction.dest},
    ):
        return None
    return GlobalBarrier(
        end=end,
        others=int(all_there.operands[1]),
        signal=signals[0][0],
        before_cycles=blocks[signal].cycles,
        between_cycles=blocks[wait].cycles,
        each_cycles=blocks[loop].cycles,
        after_cycles=blocks[own_wait].cycles,
    )


def _leads(block: Block, to: int) -> bool:
    return block.branch is None and block.following == to


def _instructions(program: Program, block: Block) -> Iterator[Instruction]:
    for bundle in program.bundles[block.first : block.last + 1]:
        yield from bundle.instructions


def _of_kind(program: Program, block: Block, kind: Kind) -> Iterator[Instruction]:
    return (instruction for instruction in _instructions(program, block) if instruction.traits.kind == kind)


def _is_allowed(instruction: Instruction) -> bool:
    traits = instruction.traits
    leaves_nothing = traits.writes in ("nothing", "register") and traits.kind != "unknown"
    return leaves_nothing or traits.kind in _BARRIER_KINDS


def _needed(program: Program, blocks: Sequence[Block], begin: int, written: set[str]) -> bool:
    """True if anything from a block on reads a register before it is written again."""
    pending, seen = [(begin, frozenset(written))], set[tuple[int, frozenset[str]]]()
    while pending:
        state = pending.pop()
        if state in seen:
            continue
        seen.add(state)
        number, left = state
        for bundle in program.bundles[blocks[number].first : blocks[number].last + 1]:
            read = registers(
                " ".join(
                    " ".join((*instruction.operands, _condition(instruction))) for instruction in bundle.instructions
                )
            )
            if not left.isdisjoint(read):
                return True
            left -= {
                physical(f"%{instruction.dest}")
                for instruction in bundle.instructions
                if instruction.dest and "_" in instruction.dest and instruction.predicate is None
            }
        if left:
            pending += [(to, left) for to in (blocks[number].taken, blocks[number].following) if to is not None]
    return False


def _condition(instruction: Instruction) -> str:
    predicate = instruction.predicate
    return f"%{predicate.register}" if predicate is not None and predicate.register else ""
