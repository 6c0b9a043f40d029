"""Find the instructions that matter: a branch, a copy, a wait or a predicate of the matrix units depends on them.

Most scalar code of a kernel computes addresses in VMEM and HBM. They decide nothing about time, so they are left out of
the translation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from systolic.simulator.reading.blocks import Block
from systolic.simulator.reading.listing import Bundle, Instruction, Program, physical, registers
from systolic.simulator.translating.scalar import spill_slot, static_allocation

_ALLOCATION = re.compile(r"#(\w+)", re.ASCII)
_NAMED = re.compile(r"%(\d+)\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class Effect:
    """Reads and writes of an instruction, and whether it matters without a reader."""

    reads: tuple[str, ...]
    writes: str | None
    kills: bool  # the old value of `writes` does not survive
    root: bool


_NO_EFFECT = Effect((), None, False, False)


def _read_operands(instruction: Instruction, followed: Set[int], remote: bool) -> tuple[str, ...]:
    """Return the operands that decide its effect; for a copy: when it lands, and, if followed, its places."""
    operands, traits = instruction.operands, instruction.traits
    read = operands[traits.reads]
    if traits.kind == "copy":
        read += operands[traits.flags]
        if remote and traits.is_remote:
            read += operands[6:7]  # the device
        if id(instruction) in followed:
            read += operands[:3]
    return read


def effect(instruction: Instruction, private: frozenset[str], followed: Set[int], *, remote: bool = False) -> Effect:
    """Return the effect of one instruction.

    Args:
      private: allocations of scalar memory that nothing reads.
      followed: `id`s of copies with followed contents.
      remote: the target device of a copy matters.
    """
    traits = instruction.traits
    predicate = instruction.predicate
    if traits.kind == "ignored":
        writes = physical(instruction.dest) if instruction.dest and "_" in instruction.dest else None
        return Effect((), writes, True, False)
    if traits.kind in ("phi", "lane move"):  # every source of a phi is the destination's own physical register
        return _NO_EFFECT
    if traits.latency == "matrix":
        reads = (predicate.register,) if predicate and predicate.register else ()
        return Effect(reads, None, False, True) if reads else _NO_EFFECT
    text = " ".join(_read_operands(instruction, followed, remote))
    reads = [*registers(text), *(f"x{name}" for name in _NAMED.findall(text))]
    writes = None
    root = traits.has_side_effects
    if instruction.dest is not None:
        writes = physical(instruction.dest) if "_" in instruction.dest else f"x{instruction.dest}"
    if traits.kind in ("load", "store"):
        slot = spill_slot(instruction.operands[0])
        if slot is not None:
            if traits.kind == "load":
                reads = [slot]
            else:
                reads, writes = registers(instruction.operands[1]), slot
        elif traits.kind == "store":
            place = static_allocation(instruction.operands[0])
            root = place is None or place not in private
    if predicate is not None and predicate.register is not None:
        reads.append(predicate.register)
        if writes is not None:
            reads.append(writes)
    return Effect(tuple(reads), writes, predicate is None, root)


def _never_read(program: Program) -> frozenset[str]:
    """Return allocations of scalar memory that the program only stores to."""
    stored, mentioned = set(), set()
    for instruction in program.instructions:
        if "#" not in instruction.text:
            continue
        others = instruction.operands
        if instruction.traits.kind == "store" and (place := static_allocation(others[0])) is not None:
            stored.add(place)
            others = others[1:]
        mentioned.update(_ALLOCATION.findall(" ".join(others)))
    return frozenset(stored - mentioned)


def live_instructions(
    program: Program, blocks: Sequence[Block], followed: Set[int], *, remote: bool = False
) -> set[int]:
    """Return `id`s of the program's instructions that matter.

    Args:
      followed: `id`s of copies whose contents matter.
      remote: the target device of a copy matters.
    """
    private = _never_read(program)

    def effects_of(bundle: Bundle) -> list[tuple[Instruction, Effect]]:
        # Most instructions, of the matrix units, matter to themselves at most.
        others = [code for code in bundle.instructions if code.predicate or code.traits.latency != "matrix"]
        pairs = [(code, effect(code, private, followed, remote=remote)) for code in others]
        return [pair for pair in pairs if pair[1].root or pair[1].writes]  # no others can matter

    effects = [
        [pairs for bundle in program.bundles[block.first : block.last + 1] if (pairs := effects_of(bundle))]
        for block in blocks
    ]
    live_in: list[frozenset[str]] = [frozenset()] * len(blocks)
    alive: set[int] = set()
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(blocks))):
            block = blocks[number]
            live: set[str] = set()
            for successor in (block.taken, block.following):
                if successor is not None:
                    live |= live_in[successor]
            for bundle in reversed(effects[number]):
                _backwards(bundle, live, alive)
            if live != live_in[number]:
                live_in[number] = frozenset(live)
                changed = True
    return alive


def _backwards(bundle: Sequence[tuple[Instruction, Effect]], live: set[str], alive: set[int]) -> None:
    """Return liveness before a bundle from liveness after it: all reads come before all writes, except `int_to_ptr`."""
    live_code = [
        (instruction, effect)
        for instruction, effect in bundle
        if effect.root or (effect.writes and effect.writes in live)
    ]
    # int_to_ptr reads what its own bundle writes.
    forwarded = {name for instruction, effect in live_code if _forwards(instruction) for name in effect.reads}
    if forwarded:
        chosen = {id(instruction) for instruction, _ in live_code}
        live_code += [
            (instruction, effect)
            for instruction, effect in bundle
            if effect.writes in forwarded and id(instruction) not in chosen
        ]
    for _, effect in live_code:
        if effect.writes and effect.kills:
            live.discard(effect.writes)
    written = {effect.writes for instruction, effect in live_code if effect.kills and not _forwards(instruction)}
    for instruction, effect in live_code:
        alive.add(id(instruction))
        live.update(name for name in effect.reads if not (_forwards(instruction) and name in written))


def _forwards(instruction: Instruction) -> bool:
    return instruction.traits.kind == "pointer"
