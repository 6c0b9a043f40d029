"""Cut a section of a SparseCore listing into basic blocks, by targets of branches and their delay slots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.sparse_core.listing import SparseBundle, SparseInstruction, SparseSection

# Bundles after a branch that still run, where the listing does not say: on v5p and v6e it prints no number.
_DELAY_SLOTS = {"scs": 3, "tec": 2}

_BETWEEN_LABELS = re.compile(r"(\.\w+)-(\.\w+)", re.ASCII)
_FORWARD = re.compile(r"\$0x([0-9a-fA-F]+)", re.ASCII)
# Programs that are longer than the sequencer's instruction memory come in parts. The time to load one is not counted:
# it is fetched while the one before runs.
_LOADER = "$__scs_overlays_trampoline_lowered"
_STORED = re.compile(r"\[smem:\$0x([0-9a-fA-F]{1,8})\]", re.ASCII)
_BRANCHES = ("branch", "branch out")
_SLOTS = re.compile(r"\$(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseBlock:
    """Bundles `first` to `last`, both included, that always run one after the other."""

    first: int
    last: int
    branch: SparseInstruction | None
    taken: int | None  # block that the branch leads to; None: out of the program
    following: int | None  # block that comes next without a branch; None at the end of the section


def split_section(name: str, section: SparseSection, kind: str) -> tuple[SparseBlock, ...]:
    """Cut a section into blocks, also at functions; raise SimulationError for a branch to no label, or in a shadow.

    A branch in the shadow of one with the opposite condition is taken where that one is not: its own last delay slots
    are a block that the other jumps over.
    """
    bundles = section.bundles
    starts = {0, *(at for label, at in section.labels.items() if not label.startswith(".Ltmp") and at < len(bundles))}
    shadows: dict[int, tuple[int, int | None]] = {}  # last bundle of the branch's shadow → where from, and to
    branches: dict[int, SparseInstruction] = {}
    otherwise: dict[int, int | None] = {}  # begin of the last delay slots of such a branch → where it leads
    shadow_end = -1
    for index, bundle in enumerate(bundles):
        branch = next(
            (instruction for instruction in bundle.instructions if instruction.traits.kind in _BRANCHES), None
        )
        if branch is None:
            continue
        last = min(index + _slots(branch, kind), len(bundles) - 1)
        target = _target(name, bundle.line, section, index, branch)
        starts.update(at for at in (target, last + 1) if at is not None and at < len(bundles))
        before = branches[max(branches)] if index <= shadow_end else None
        if before is not None and _opposite(before, branch) and last > shadow_end:
            otherwise[shadow_end + 1] = target
            continue
        shadow_end = last
        branches[index] = branch
        shadows[index] = (last, target)
    ordered = sorted(starts)
    number = {start: i for i, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(bundles)], strict=True):
        inside = [index for index in range(start, end) if index in branches]
        if len(inside) > 1 or (inside and shadows[inside[0]][0] != end - 1):
            line = bundles[inside[-1]].line
            raise SimulationError(f"{name}, line {line}: a branch or its target in the shadow of a branch")
        target = shadows[inside[0]][1] if inside else None
        following = number.get(end)
        if start in otherwise:
            place = otherwise[start]
            following = None if place is None else number[place]
        blocks.append(
            SparseBlock(
                first=start,
                last=end - 1,
                branch=branches[inside[0]] if inside else None,
                taken=None if target is None else number[target],
                following=following,
            )
        )
    return tuple(blocks)


def delay_cycles(bundle: SparseBundle) -> int:
    """Return how long a bundle holds its program up."""
    waits = [instruction for instruction in bundle.instructions if instruction.traits.kind == "delay"]
    return max((int(wait.operands[0].removeprefix("$"), 0) for wait in waits), default=0)


def _place_in_part(section: SparseSection, index: int) -> int | None:
    """Return the bundle at which the loader goes on.

    Three words that follow each other are stored last: the part, one to be loaded meanwhile, and where the program goes
    on, in bundles from the part's begin.
    """
    link: int | None = None
    stored: dict[int, int | None] = {}  # by address, the latest last
    for bundle in section.bundles[:index]:
        for instruction in bundle.instructions:
            place = _STORED.fullmatch(instruction.dests[0]) if instruction.operands == ("lr",) else None
            if instruction.opcode == "sst" and place is not None:
                stored.pop(int(place[1], 16), None)
                stored[int(place[1], 16)] = link
        for instruction in bundle.instructions:
            if instruction.dests == ("lr",):
                constant = instruction.opcode == "simm.s32"
                link = int(instruction.operands[0].removeprefix("$"), 0) if constant else None
    addresses = sorted([*stored][-3:])
    if not addresses or addresses != [*range(addresses[0], addresses[0] + 3)]:
        return None
    part, _, offset = (stored[address] for address in addresses)
    begin = section.labels.get(f".L_overlay_start_{part}")
    return None if begin is None or offset is None else begin + offset


def _opposite(branch: SparseInstruction, other: SparseInstruction) -> bool:
    return branch.predicate == other.predicate is not None and branch.negated != other.negated


def _slots(branch: SparseInstruction, kind: str) -> int:
    slots = _SLOTS.fullmatch(branch.operands[-1]) if len(branch.operands) > 1 else None
    return int(slots[1]) if slots else _DELAY_SLOTS[kind]


def _target(name: str, line: int, section: SparseSection, index: int, branch: SparseInstruction) -> int | None:
    if branch.traits.kind == "branch out":  # back to what is always in the instruction memory
        return None
    if branch.opcode == "scall.abs":
        entry = _place_in_part(section, index) if branch.operands[0] == _LOADER else None
        if entry is not None and entry < len(section.bundles):
            return entry
    elif match := _BETWEEN_LABELS.fullmatch(branch.operands[0]):
        if match[1] in section.labels:
            return section.labels[match[1]]
    elif (match := _FORWARD.fullmatch(branch.operands[0])) and index + int(match[1], 16) < len(section.bundles):
        return index + int(match[1], 16)
    raise SimulationError(f"{name}, line {line}: a branch to nowhere: {branch.text}")
