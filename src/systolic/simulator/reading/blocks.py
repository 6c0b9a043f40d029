"""Cut a program into basic blocks: the targets of branches, and the bundles in their delay slots.

A branch takes effect some bundles late: its *delay slots* always run. Their number is the machine's, but a listing of a
machine with six slots prints a trailing run of empty ones as a single `{}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.listing import Bundle, Instruction, Program


@dataclass(frozen=True, slots=True)
class Block:
    """Bundles `first` to `last`, both included, that always run one after the other."""

    first: int
    last: int
    branch: int | None  # index of the bundle with the branch; it and its delay slots end the block
    taken: int | None  # block that the branch leads to; None for a branch out of the program
    following: int | None  # block that comes next without a branch; None at the end of the program
    last_cycles: int  # cycles of the last bundle: above one where it represents several empty delay slots
    depth: int = 0  # of loops around it

    @property
    def cycles(self) -> int:
        """Cycles of one execution without stalls."""
        return self.last - self.first + self.last_cycles


def branch_of(bundle: Bundle) -> Instruction | None:
    for instruction in bundle.instructions:
        if instruction.traits.kind == "branch":
            return instruction
    return None


def split_blocks(program: Program, delay_slots: int) -> tuple[Block, ...]:
    """Cut a program into basic blocks, in the order of the listing.

    Raises:
      SimulationError: a branch to no region, into the shadow of another, or with a shadow that is cut off.
    """
    bundles = program.bundles
    shadows: dict[int, tuple[int, int, int | None]] = {}  # branch → last bundle, its cycles, target bundle
    leaders = {0}
    for index, bundle in enumerate(bundles):
        branch = branch_of(bundle)
        if branch is None:
            continue
        target = _target(program, bundle, branch)
        last, cycles = _shadow(program, index, delay_slots, target)
        shadows[index] = (last, cycles, target)
        if target is not None:
            leaders.add(target)
        if last + 1 < len(bundles):
            leaders.add(last + 1)
    starts = sorted(leaders)
    number = {start: i for i, start in enumerate(starts)}
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(bundles)], strict=True):
        branches = [index for index in range(start, end) if index in shadows]
        following = number.get(end)
        if not branches:
            blocks.append(Block(start, end - 1, None, None, following, 1, bundles[start].depth))
            continue
        index = branches[0]
        last, cycles, target = shadows[index]
        if len(branches) > 1 or last != end - 1:
            line = bundles[branches[-1]].line
            raise SimulationError(f"{program.name}, line {line}: a branch or its target in the shadow of a branch")
        to = None if target is None else number[target]
        blocks.append(Block(start, last, index, to, following, cycles, bundles[start].depth))
    return tuple(blocks)


def _target(program: Program, bundle: Bundle, branch: Instruction) -> int | None:
    target = next((operand for operand in branch.operands if operand.startswith("target = $region")), None)
    if target is None:
        raise SimulationError(f"{program.name}, line {bundle.line}: a branch without a target: {branch.text}")
    # A region that begins nowhere lies after the program's end.
    return program.region_start.get(int(target.removeprefix("target = $region")))


def _reach(slots: Sequence[Bundle], depth: int) -> int:
    """Count the bundles after a branch that its shadow can cover at most.

    Args:
      depth: of the loops that the branch repeats; 0: it leads on.
    """
    stops = (
        at
        for at, slot in enumerate(slots)
        if branch_of(slot) is not None
        or (at > 0 and slot.region_starts)
        or _meets_others(slot)
        or (slot.depth < depth and _changes_flags(slot))
    )
    return next(stops, len(slots))


def _changes_flags(bundle: Bundle) -> bool:
    """True if the bundle changes a flag of its core whatever the branch decides."""
    return any(
        instruction.traits.kind in ("set flag", "add to flag") and instruction.predicate is None
        for instruction in bundle.instructions
    )


def _meets_others(bundle: Bundle) -> bool:
    """True if the bundle waits, or signals another device whatever the branch decides."""
    return any(
        instruction.traits.is_wait or (instruction.traits.kind == "signal" and instruction.predicate is None)
        for instruction in bundle.instructions
    )


def _shadow(program: Program, index: int, delay_slots: int, target: int | None) -> tuple[int, int]:
    """Return the last delay slot of the branch in bundle `index`, and the cycles that its line represents."""
    bundles = program.bundles
    slots = bundles[index + 1 : index + 1 + delay_slots]
    if delay_slots <= 4:
        if len(slots) < delay_slots:
            raise SimulationError(f"{program.name}, line {bundles[index].line}: the program ends in a branch's shadow")
        return index + delay_slots, 1
    # Which `{}` represents the rest is not marked. What holds in every listing seen: the shadow never reaches over the
    # begin of a region, another branch, a wait for a copy or a signal to another device, nor out of a loop to a change
    # of a flag, which would happen each round; and a run of empty slots not over the end of a region. On the chips that
    # print all of their slots nothing waits in a shadow either (651 branches of 80 programs), and nothing signals there
    # (819 branches of 12 programs for slices).
    begin = bundles[target] if target is not None and target <= index else None  # of the loop
    slots = slots[: _reach(slots, begin.depth if begin is not None else 0)]
    # The regions of a loop begin where its branch leads to. One that ends in the last slot has all slots within it.
    looped = begin.region_starts if begin is not None else ()
    if len(slots) == delay_slots and not set(looped).isdisjoint(slots[-1].region_ends):
        return index + delay_slots, 1
    empty = [slot for slot, bundle in enumerate(slots, 1) if bundle.empty]
    for slot in empty:
        ahead = bundles[index + slot + 1] if index + slot + 1 < len(bundles) else None
        before = bundles[index + slot - 1]
        if (ahead is not None and ahead.region_starts) or (before.region_ends and slot > 1):
            return index + slot, delay_slots - slot + 1
    if len(slots) == delay_slots and (slots[-1].region_ends or not empty):
        return index + delay_slots, 1
    if empty:
        return index + empty[0], delay_slots - empty[0] + 1
    raise SimulationError(f"{program.name}, line {bundles[index].line}: the end of this branch's shadow is not marked")
