"""Cut a section of a SparseCore listing into basic blocks, by targets of branches and their delay slots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.sparse_core.listing import SparseInstruction, SparseSection

# Bundles after a branch that still run, where the listing does not say: on v5p and v6e it prints no number.
_DELAY_SLOTS = {"scs": 3, "tec": 2}

_BETWEEN_LABELS = re.compile(r"(\.\w+)-(\.\w+)", re.ASCII)
_FORWARD = re.compile(r"\$0x([0-9a-fA-F]+)", re.ASCII)
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
    """Cut a section into blocks, also at functions; raise SimulationError for a branch to no label, or in a shadow."""
    bundles = section.bundles
    starts = {0, *(at for label, at in section.labels.items() if not label.startswith(".Ltmp") and at < len(bundles))}
    shadows: dict[int, tuple[int, int | None]] = {}  # last bundle of the branch's shadow → where from, and to
    branches: dict[int, SparseInstruction] = {}
    for index, bundle in enumerate(bundles):
        branch = next(
            (instruction for instruction in bundle.instructions if instruction.traits.kind in _BRANCHES), None
        )
        if branch is None:
            continue
        last = min(index + _slots(branch, kind), len(bundles) - 1)
        target = _target(name, bundle.line, section, index, branch)
        branches[index] = branch
        shadows[index] = (last, target)
        starts.update(at for at in (target, last + 1) if at is not None and at < len(bundles))
    ordered = sorted(starts)
    number = {start: i for i, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(bundles)], strict=True):
        inside = [index for index in range(start, end) if index in branches]
        if len(inside) > 1 or (inside and shadows[inside[0]][0] != end - 1):
            line = bundles[inside[-1]].line
            raise SimulationError(f"{name}, line {line}: a branch or its target in the shadow of a branch")
        target = shadows[inside[0]][1] if inside else None
        blocks.append(
            SparseBlock(
                first=start,
                last=end - 1,
                branch=branches[inside[0]] if inside else None,
                taken=None if target is None else number[target],
                following=number.get(end),
            )
        )
    return tuple(blocks)


def _slots(branch: SparseInstruction, kind: str) -> int:
    slots = _SLOTS.fullmatch(branch.operands[-1]) if len(branch.operands) > 1 else None
    return int(slots[1]) if slots else _DELAY_SLOTS[kind]


def _target(name: str, line: int, section: SparseSection, index: int, branch: SparseInstruction) -> int | None:
    if branch.traits.kind == "branch out":  # back to what is always in the instruction memory
        return None
    if match := _BETWEEN_LABELS.fullmatch(branch.operands[0]):
        if match[1] in section.labels:
            return section.labels[match[1]]
    elif (match := _FORWARD.fullmatch(branch.operands[0])) and index + int(match[1], 16) < len(section.bundles):
        return index + int(match[1], 16)
    raise SimulationError(f"{name}, line {line}: a branch to nowhere: {branch.text}")
