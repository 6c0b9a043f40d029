"""Translate a program's scalar side into one Python function that computes the times of all events.

The function holds the core's registers in local variables and goes from basic block to basic block. For copies, waits
and the MXUs it calls the sequencer; everything else between them is a number of cycles.

It is a generator. If cores share a device it yields its time before each act on shared parts, so that the core with the
earliest time goes first; and it yields None if a wait can't be satisfied by anything under way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from systolic.chips import MachineModel
from systolic.simulator.errors import SimulationError, reading
from systolic.simulator.hardware.mxu import MatrixOp, MatrixReader, Segment
from systolic.simulator.hardware.words import SCOPE
from systolic.simulator.reading.barriers import Barrier, central_barriers
from systolic.simulator.reading.blocks import Block, branch_of, split_blocks
from systolic.simulator.reading.calls import CallOperand, call_operands
from systolic.simulator.reading.copies import CopyReader
from systolic.simulator.reading.listing import Instruction, Program, physical, registers
from systolic.simulator.translating.bundle import BundleCode
from systolic.simulator.translating.control_flow import dispatch
from systolic.simulator.translating.detours import BRANCH, Detour, with_detours
from systolic.simulator.translating.events import EventCode
from systolic.simulator.translating.literals import quoted
from systolic.simulator.translating.liveness import live_instructions
from systolic.simulator.translating.mentions import Mentions
from systolic.simulator.translating.names import Allocations, Names
from systolic.simulator.translating.remote import RemoteCode
from systolic.simulator.translating.round_code import REGISTERS, begin_round, going_on, loops_of_calls
from systolic.simulator.translating.scalar import flag_counts, flag_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A program as a Python function, with its numbered segments of straight code."""

    name: str
    run: Callable[..., Generator[int | None, None, int]]  # (time, sequencer) → time
    segments: tuple[Segment, ...]
    addresses: dict[str, int]  # of allocations, by name
    source: str
    blocks: tuple[Block, ...]  # those that `sequencer.left` counts
    operands: tuple[CallOperand, ...]
    barriers: Mapping[int, Barrier] = field(default_factory=dict)  # by the block that ends where they begin
    detours: Mapping[int, Detour] = field(default_factory=dict)  # by the block with the branch

    @property
    def alone(self) -> bool:
        """True if it sends nothing to other cores or devices, and signals none."""
        return not _ACTS.search(self.source)

    def listing_line(self, error: BaseException) -> int | None:
        """Return the line of the listing whose code raised `error`; None if unknown."""
        mark = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _file_name(self.name):
                mark = _MARK.search(self.source.split("\n")[trace.tb_lineno - 1])
            trace = trace.tb_next
        return int(mark.group(1)) if mark is not None else None


def translate(
    program: Program,
    machine: MachineModel,
    allocations: Allocations,
    *,
    shared: bool,
    top_level: bool,
    remote: RemoteCode | None = None,
) -> Translation:
    """Translate a parsed listing.

    Args:
      allocations: shared with the other programs of the run.
      shared: other cores act on the same device; see above.
      top_level: it calls the other programs.
      remote: it runs on many devices, and acts on others; None: on one alone.

    Raises:
      SimulationError: an instruction that matters and is not understood; the message quotes it.
    """
    return _Translator(program, machine, allocations, shared, top_level, remote).translate()


class _Translator:
    def __init__(
        self,
        program: Program,
        machine: MachineModel,
        allocations: Allocations,
        shared: bool,
        top_level: bool,
        remote: RemoteCode | None,
    ) -> None:
        self.program = program
        self.machine = machine
        self.blocks = split_blocks(program, machine.branch_delay_slots)
        self.barriers = central_barriers(program, self.blocks) if remote is not None else {}
        copies = CopyReader(program)
        followed = copies.followed(top_level=top_level)
        alive = live_instructions(program, self.blocks, followed, remote=remote is not None)
        numbered = remote.numbered if remote is not None else {}
        flags = flag_names(program)
        counts = flag_counts(program, flags)
        names = Names(flags, allocations, shared=top_level, numbered=numbered, counts=counts)
        self.mentions = Mentions(names)
        events = EventCode(program, self.mentions, copies, followed, shared=shared, remote=remote)
        self.code = BundleCode(self.mentions, events, alive)
        self.matrix = MatrixReader(machine)
        self.segments: list[Segment] = []
        self.remote = remote
        self.loops = loops_of_calls(program, self.blocks) if top_level else frozenset[int]()

    def translate(self) -> Translation:
        bodies = [self._block(number, block) for number, block in enumerate(self.blocks)]
        detours = self._detours(bodies) if self.remote is not None else {}
        scalars = " = ".join(sorted(name for name in self.mentions.variables if name[0] != "w"))
        vectors = " = ".join(sorted(name for name in self.mentions.variables if name[0] == "w"))
        counts = [f"n{number}" for number in range(len(self.blocks))]
        lines = [
            "def run(t, sequencer):",
            *(f"    {name} = sequencer.{name}" for name in _CALLED),
            *([f"    {scalars} = nothing"] if scalars else []),
            *([f"    {vectors} = vector"] if vectors else []),
            "    limit = sequencer.iterations.left",
            f"    block = iterations = {' = '.join(counts)} = 0",
            "    if block:",  # never: a program that yields nowhere has to be a generator too
            "        yield t",
            "    while True:",
            *dispatch(bodies, 0, len(bodies), "        "),
        ]
        source = "\n".join(lines).replace(REGISTERS, ", ".join(("block", *sorted(self.mentions.variables))))
        with reading(self.program.name):  # an expression may be too deep for Python
            run = self._compiled(source, "run")
        return Translation(
            name=self.program.name,
            run=run,
            segments=tuple(self.segments),
            addresses=self.mentions.names.addresses,
            source=source,
            blocks=self.blocks,
            operands=call_operands(self.program),
            barriers=self.barriers,
            detours=detours,
        )

    def _detours(self, bodies: list[list[str]]) -> dict[int, Detour]:
        variables, called = frozenset(self.mentions.variables), frozenset(_CALLED)
        return with_detours(bodies, self.blocks, variables, called, lambda source: self._compiled(source, "detour"))

    def _compiled(self, source: str, name: str) -> Callable[..., Any]:
        scope = SCOPE | _NAMES
        exec(compile(source, _file_name(self.program.name), "exec"), scope)
        return scope[name]

    # ---- one block ----

    def _block(self, number: int, block: Block) -> list[str]:
        code = [f"n{number} += 1"]
        gathered = _Gathered()
        last_start = 0
        for index in range(block.first, block.last + 1):
            bundle = self.program.bundles[index]
            if not bundle.instructions:
                continue
            offset = index - block.first
            try:
                others = [instruction for instruction in bundle.instructions if instruction.traits.latency != "matrix"]
                if others and any(instruction.opcode == "call" for instruction in others):
                    self._check_shadow_of_call(index)
                if others and (events := self.code.events(bundle)):
                    self._close(number, gathered, offset - last_start, code)
                    last_start = offset
                    code += _marked(events, bundle.line)
                for instruction in bundle.instructions:
                    if instruction.traits.latency == "matrix":
                        code += self._matrix(instruction, offset - last_start, gathered)
                if others:
                    code += _marked(self.code.rest(bundle), bundle.line)
            except SimulationError as error:
                raise SimulationError(f"{self.program.name}, line {bundle.line}: {error}") from error
            except (LookupError, ValueError) as error:  # fewer operands, or others, than the opcode has
                text = "  ;;  ".join(instruction.text for instruction in bundle.instructions)
                raise SimulationError(f"{self.program.name}, line {bundle.line}: not understood: {text}") from error
        self._close(number, gathered, block.cycles - last_start, code)
        return code + self._leave(number, block)

    def _check_shadow_of_call(self, index: int) -> None:
        """Check that it makes no difference that a call's delay slots run before the called program."""
        bundles = self.program.bundles
        (call,) = (code for code in bundles[index].instructions if code.opcode == "call")
        handed = set(registers(" ".join(call.operands)))
        for slot in bundles[index + 1 : index + 1 + self.machine.branch_delay_slots]:
            if any(instruction.opcode == "vtrace" for instruction in slot.instructions):
                return  # it marks the end of the call
            for instruction in slot.instructions:
                written = physical(instruction.dest) if instruction.dest and "_" in instruction.dest else None
                if instruction.traits.latency == "event" or written in handed:
                    raise SimulationError(f"not understood in the shadow of a call: {instruction.text}")

    def _leave(self, number: int, block: Block) -> list[str]:
        def to(target: int | None) -> list[str]:
            if target is None:
                ran = "".join(f"n{block}, " for block in range(len(self.blocks)))
                return [f"left(iterations, ({ran}))", "return t"]
            if target > number:
                return [f"block = {target}"]
            guard = ["iterations += 1", "if iterations > limit:", "    too_long()"]  # a misread one may not end
            begin = begin_round(target, self.blocks[target].depth, of_calls=target in self.loops)
            return [*guard, *begin, f"block = {target}"]

        if block.branch is None:
            return to(block.following)
        instruction = branch_of(self.program.bundles[block.branch])
        if instruction is None or instruction.predicate is None:
            return to(block.taken)
        taken, following = ([f"    {line}" for line in to(target)] for target in (block.taken, block.following))
        branch = [*going_on(self.loops, number, block), BRANCH, *taken, "else:", *following]
        barrier = self.barriers.get(number)
        if barrier is None:
            return branch
        label = quoted(self.remote.label(barrier.signal)) if self.remote is not None else ""
        body = [f"    {line}" for line in branch]
        return [
            f"r = together(t, {number}, {label})",
            "if r is None:",
            *body,
            "else:",
            "    t = r",
            f"    block = {barrier.end}",
        ]

    def _close(self, block: int, gathered: _Gathered, cycles: int, code: list[str]) -> None:
        """Let the time of the straight code since the last event pass."""
        if not gathered.ops:
            if cycles:
                code.append(f"t += {cycles}")
            return
        self.segments.append(Segment(cycles, tuple(gathered.ops), block))
        conditions = "".join(f"{name}, " for name in gathered.conditions)
        code.append(f"t = segment({len(self.segments) - 1}, t" + (f", ({conditions}))" if conditions else ")"))
        gathered.clear()

    def _matrix(self, instruction: Instruction, offset: int, gathered: _Gathered) -> list[str]:
        predicate = instruction.predicate
        if predicate is not None and (predicate.never or instruction.traits.kind == "lane move"):
            return []  # the few moves across lanes under a predicate are not worth finding out its value
        condition = None
        code = []
        if predicate is not None and predicate.register is not None:
            # The register may change before the segment is over: keep what it held here.
            condition = len(gathered.conditions)
            name = f"q{condition}"
            gathered.conditions.append(name)
            code.append(f"{name} = {self.mentions.condition(predicate)}")
        gathered.ops += self.matrix.ops(instruction, offset, condition)
        return code


# Attributes of the sequencer that a program calls.
_CALLED = (
    *("start", "move", "wait", "wait_for_value", "count", "add", "put", "signal", "send", "receive", "blocked"),
    *("early_wait", "send_descriptor", "wait_for_sparse_core", "general", "signal_any", "set_remote"),
    *("segment", "load", "store", "store_on_some", "own", "on_any", "word", "operand", "parameter", "vector", "pushed"),
    *("start_barna_core", "call", "lap", "left", "too_long", "together", "apart", "next_round", "goes_on"),
)

# Other names in its code.
_NAMES = {"type": type, "int": int, "bool": bool}

_ACTS = re.compile(r"\b(?:general|signal|signal_any|set_remote|send|send_descriptor|together)\(")
_MARK = re.compile(r"  # line (\d+)$")


def _file_name(program: str) -> str:
    return f"<{program!a}>"


def _marked(code: list[str], line: int) -> list[str]:
    """Note the listing's line after each line of code, for messages."""
    return [f"{text}  # line {line}" for text in code]


@dataclass(slots=True)
class _Gathered:
    """The work of the MXUs since the last event, and its conditions."""

    ops: list[MatrixOp] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.ops, self.conditions = [], []
