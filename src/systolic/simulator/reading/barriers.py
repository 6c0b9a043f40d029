"""Central barriers: each device signals the first one, which waits for all others and then signals each of them.

The first device thus differs from the others, so one representative device cannot execute it. Begin and end are read
from the listing, so that `slice/one_for_all.py` can leave the barrier out. There are barriers of all devices, which
signal in a loop, and barriers of the devices of a collective's group, each with its first device, whose signals stand
one after the other. On v4, and in groups, devices may signal the first one some time before the rest of the barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from systolic.simulator.opcode_traits import Kind
from systolic.simulator.reading.blocks import Block, branch_of
from systolic.simulator.reading.listing import Instruction, Program, physical, registers

_WAIT, _WAIT_IN_GROUP = "global-barrier-wait", "replica-group-barrier-wait"
# A barrier's own acts. Everything else in its blocks only writes registers.
_BARRIER_KINDS = ("signal", "add to flag", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralBarrier:
    """A barrier in a listing, of all devices or of those of a group."""

    end: int  # the block after it
    others: int  # number of devices that the first one waits for
    signal: Instruction  # the instruction by which others signal the first device
    before_cycles: int  # until a device has signalled the first one
    between_cycles: int  # until that one, which has all signals, begins to signal the others
    each_cycles: int  # from one of its signals to the next
    after_cycles: int  # after a device's own wait
    has_signalled: bool = False  # the first device, by an `EarlySignal`
    in_group: bool = False  # of the collective that it belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlySignal:
    """The signal to the first device, where the rest of a barrier follows later."""

    end: int  # the block after it
    signal: Instruction
    cycles: int
    mentioned: frozenset[str]  # operands of its block, among them the flag in barriers of all devices
    is_first: str  # the register by which the first device leaves it out


Barrier = CentralBarrier | EarlySignal


def central_barriers(program: Program, blocks: Sequence[Block]) -> dict[int, Barrier]:
    """Find barriers of the one known form, by the block that ends with a test for the first device."""
    result: dict[int, Barrier] = {}
    early: tuple[int, EarlySignal] | None = None  # that belongs to no barrier yet
    for first in range(len(blocks) - 2):
        signal = _signal_at(first, program, blocks)
        if signal is not None:
            barrier = _barrier_at(signal.end, signal, program, blocks)
            early = (first, signal) if barrier is None else None
        else:
            barrier = _barrier_at(first, early[1], program, blocks, has_signalled=True) if early is not None else None
            if early is not None and barrier is not None:
                result[early[0]], early = early[1], None
        if barrier is not None:
            result[first] = barrier
    return result


def _signal_at(first: int, program: Program, blocks: Sequence[Block]) -> EarlySignal | None:
    """Return the signal of all but the first device behind a block."""
    signal, end = first + 1, first + 2
    signals = list(_of_kind(program, blocks[signal], "signal"))
    if (blocks[first].taken, blocks[first].following) != (end, signal) or not _leads(blocks[signal], end):
        return None
    if len(signals) != 1 or not _leaves_nothing(program, blocks, range(signal, end), end):
        return None
    mentioned = frozenset(text for code in _instructions(program, blocks[signal]) for text in code.operands)
    is_first = _branch_condition(program, blocks[first])
    return EarlySignal(end=end, signal=signals[0], cycles=blocks[signal].cycles, mentioned=mentioned, is_first=is_first)


def _barrier_at(
    ask: int, signal: EarlySignal, program: Program, blocks: Sequence[Block], *, has_signalled: bool = False
) -> CentralBarrier | None:
    """Return the barrier whose second test for the first device ends a block."""
    telling = _telling(ask, program, blocks)
    if telling is None:
        return None
    wait, again = ask + 1, telling.again
    own_wait, end = again + 1, again + 2
    joins = (
        (blocks[ask].taken, blocks[ask].following) == (again, wait)
        and (blocks[again].taken, blocks[again].following) == (end, own_wait)
        and _leads(blocks[own_wait], end)
    )
    waits = [list(_of_kind(program, blocks[block], "wait")) for block in (wait, own_wait)]
    if not joins or any(len(wait) != 1 or telling.wait not in wait[0].comment for wait in waits):
        return None
    (all_there,), (told,) = waits
    flag, others = all_there.operands[:2]
    belongs = flag in signal.mentioned or _branch_condition(program, blocks[again]) == signal.is_first
    if told.operands != (flag, "1") or not others.isdecimal() or (has_signalled and not belongs):
        return None
    # Of a barrier in one piece that is skipped from the signal on.
    skipped = range(wait if has_signalled else ask - 1, end)
    if telling.signals not in (None, int(others)) or not _leaves_nothing(program, blocks, skipped, end):
        return None
    return CentralBarrier(
        end=end,
        others=int(others),
        signal=signal.signal,
        before_cycles=0 if has_signalled else signal.cycles,
        between_cycles=telling.between_cycles,
        each_cycles=telling.each_cycles,
        after_cycles=blocks[own_wait].cycles,
        has_signalled=has_signalled,
        in_group=telling.wait == _WAIT_IN_GROUP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Telling:
    """The first device's wait for the others, and its signals to them."""

    again: int  # the block after it
    wait: str  # the comment of both waits
    signals: int | None  # None: in a loop
    between_cycles: int
    each_cycles: int


def _telling(ask: int, program: Program, blocks: Sequence[Block]) -> _Telling | None:
    """Return the first device's part of a barrier, which follows a block."""
    wait, loop = ask + 1, ask + 2
    if loop + 2 >= len(blocks):
        return None
    signals = [
        index
        for index in range(blocks[wait].first, blocks[wait].last + 1)
        for instruction in program.bundles[index].instructions
        if instruction.traits.kind == "signal"
    ]
    if not _leads(blocks[wait], loop):
        return None
    if signals:
        return _Telling(
            again=loop,
            wait=_WAIT_IN_GROUP,
            signals=len(signals),
            between_cycles=signals[0] - blocks[wait].first,
            each_cycles=(signals[-1] - signals[0]) // max(1, len(signals) - 1),
        )
    again, in_loop = loop + 1, list(_of_kind(program, blocks[loop], "signal"))
    if again + 2 >= len(blocks) or len(in_loop) != 1 or (blocks[loop].taken, blocks[loop].following) != (loop, again):
        return None
    return _Telling(
        again=again,
        wait=_WAIT,
        signals=None,
        between_cycles=blocks[wait].cycles,
        each_cycles=blocks[loop].cycles,
    )


def _leaves_nothing(program: Program, blocks: Sequence[Block], inside: range, end: int) -> bool:
    """True if blocks only act as a barrier does, and no register that they write is read after them."""
    instructions = [instruction for number in inside for instruction in _instructions(program, blocks[number])]
    written = {physical(f"%{code.dest}") for code in instructions if code.dest and "_" in code.dest}
    return all(map(_is_allowed, instructions)) and not _needed(program, blocks, end, written)


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
        block = blocks[state[0]]
        ways = _left_after(program, block, state[1])
        if ways is None:
            return True
        ends = zip((block.taken, block.following), ways, strict=True)
        pending += [(to, left) for to, left in ends if to is not None and left]
    return False


def _left_after(program: Program, block: Block, left: frozenset[str]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return those registers that are not written in a block, if its branch is taken and if not; None: one is read."""
    branch = branch_of(program.bundles[block.branch]) if block.branch is not None else None
    condition = branch.predicate if branch is not None else None
    on_way: dict[bool, set[str]] = {True: set(), False: set()}  # written only if the branch is taken, or is not
    for index in range(block.first, block.last + 1):
        written: set[str] = set()
        for code in sorted(program.bundles[index].instructions, key=_is_pointer):
            read = registers(" ".join((*code.operands, _condition(code))))
            if not left.isdisjoint(set(read) - written if _is_pointer(code) else read):
                return None
            dest = physical(f"%{code.dest}") if code.dest and "_" in code.dest else None
            predicate = code.predicate
            if dest is None:
                continue
            if condition is not None and dest == condition.register and index >= (block.branch or 0):
                condition = None  # from here on it is another one
            if predicate is None:
                written.add(dest)
            elif condition is not None and index >= (block.branch or 0) and predicate.register == condition.register:
                on_way[predicate.negated == condition.negated].add(dest)
        left -= written
    return left - on_way[True], left - on_way[False]


def _is_pointer(instruction: Instruction) -> bool:
    """True if it reads what its own bundle writes."""
    return instruction.traits.kind == "pointer"


def _branch_condition(program: Program, block: Block) -> str:
    """Return the register that a block's branch depends on; "" if there is none."""
    branch = branch_of(program.bundles[block.branch]) if block.branch is not None else None
    return _condition(branch) if branch is not None else ""


def _condition(instruction: Instruction) -> str:
    predicate = instruction.predicate
    return f"%{predicate.register}" if predicate is not None and predicate.register else ""
