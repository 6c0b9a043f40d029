"""Code with which the top-level program's loops of calls begin another round; see `simulator.rounds`."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.simulator.reading.blocks import Block
from systolic.simulator.reading.listing import Program

REGISTERS = "<registers>"  # in place of all registers, until all are known


def loops_of_calls(program: Program, blocks: Sequence[Block]) -> frozenset[int]:
    """Return the first blocks of outermost loops that call other programs."""
    loops = set()
    for number, block in enumerate(blocks):
        for target in (block.taken if block.branch is not None else None, block.following):
            if target is not None and target <= number and blocks[target].depth == 1:
                inside = program.bundles[blocks[target].first : block.last + 1]
                if any(instruction.traits.kind == "call" for bundle in inside for instruction in bundle.instructions):
                    loops.add(target)
    return frozenset(loops)


def begin_round(loop: int, depth: int, *, of_calls: bool) -> list[str]:
    """Make code that begins another round of a loop."""
    lap = [f"lap({loop}, t)"] if depth == 1 else []
    return [*lap, f"{REGISTERS} = next_round({loop}, t, ({REGISTERS}))"] if of_calls else lap


def going_on(loops: frozenset[int], number: int, block: Block) -> list[str]:
    """Make code that finds out whether a branch after a round is taken."""
    for target, back in ((block.taken, True), (block.following, False)):
        if target in loops and target is not None and target <= number:
            return [f"jump = goes_on({target}, jump, {back})"]
    return []
