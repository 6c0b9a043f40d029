"""Translates a program's scalar side into one Python function that computes when everything happens.

The function holds the machine's registers in local variables and goes from basic block to basic block. Copies, waits
and the matrix units are calls into `copies` and `matrix`; everything else between them is a number of cycles.

It is a generator. Where cores share a device it yields its time before each act on what they share, so that the one
that is behind goes first; and it yields None where a wait can't be satisfied by what is under way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from systolic.chips import MachineModel
from systolic.simulator.blocks import Block, split_blocks
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Bundle, Instruction, Predicate, Program, physical
from systolic.simulator.liveness import live_instructions
from systolic.simulator.matrix import MatrixOp, Segment, matrix_ops
from systolic.simulator.scalar import IGNORED, Names, address, expression, flag_names, operand, spill_slot
from systolic.simulator.spaces import copy_ends

_EVENTS = ("inlined_call", "vpush.ccrf", "vpop.ccrf", "vsyncadd.remote")
_CALLED = re.compile(r"%([\w.\-]+) = ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A program as a Python function, with the segments of straight code that it names by number."""

    name: str
    run: Callable[..., Generator[int | None, None, int]]  # (time, machine) → time
    segments: tuple[Segment, ...]
    addresses: dict[str, int]  # of allocations, by name
    source: str
    bundles: int


def translate(program: Program, machine: MachineModel, *, shared: bool) -> Translation:
    """Translates a listing that has been read.

    Args:
      shared: other cores act on the same device; see above.

    Raises:
      SimulationError: an instruction that matters and is not understood; the message quotes it.
    """
    return _Translator(program, machine, shared).translate()


class _Translator:
    def __init__(self, program: Program, machine: MachineModel, shared: bool) -> None:
        self.program = program
        self.machine = machine
        self.shared = shared
        self.blocks = split_blocks(program, machine.branch_delay_slots)
        self.alive = live_instructions(program, self.blocks)
        self.names = Names(flag_names(program))
        self.segments: list[Segment] = []
        self.variables: set[str] = set()
        self.vector_registers: set[str] = set()

    def translate(self) -> Translation:
        bodies = [self._block(block) for block in self.blocks]
        registers = " = ".join(sorted(self.variables))
        lines = [
            "def run(t, machine):",
            "    start, wait, add, put = machine.start, machine.wait, machine.add, machine.put",
            "    seg, load, store, call = machine.segment, machine.load, machine.store, machine.call",
            "    send, receive, signal = machine.send, machine.receive, machine.signal",
            *([f"    {registers} = None"] if registers else []),
            "    block = 0",
            "    if block:",  # never: a program that yields nowhere has to be a generator too
            "        yield t",
            "    while True:",
            *_dispatch(bodies, 0, len(bodies), "        "),
        ]
        source = "\n".join(lines)
        scope: dict[str, Callable[..., Generator[int | None, None, int]]] = {}
        exec(compile(source, f"<{self.program.name}>", "exec"), scope)
        return Translation(
            name=self.program.name,
            run=scope["run"],
            segments=tuple(self.segments),
            addresses=self.names.addresses,
            source=source,
            bundles=len(self.program.bundles),
        )

    # ---- one block ----

    def _block(self, block: Block) -> list[str]:
        code: list[str] = []
        gathered = _Gathered()
        last_start = 0
        for index in range(block.first, block.last + 1):
            bundle = self.program.bundles[index]
            offset = index - block.first
            try:
                events, assigns = self._bundle(bundle, offset, gathered, code, last_start)
                if events is not None:
                    last_start = events
                code += assigns
            except SimulationError as error:
                raise SimulationError(f"{self.program.name}, line {bundle.line}: {error}") from error
        length = block.last - block.first + block.last_cycles
        self._close(gathered, length - last_start, code)
        return code + self._leave(block)

    def _leave(self, block: Block) -> list[str]:
        def to(number: int | None) -> str:
            return "return t" if number is None else f"block = {number}"

        if block.branch is None:
            return [to(block.following)]
        instruction = next(i for i in self.program.bundles[block.branch].instructions if i.opcode == "sbr.rel")
        if instruction.predicate is None:
            return [to(block.taken)]
        return ["if jump:", f"    {to(block.taken)}", "else:", f"    {to(block.following)}"]

    def _close(self, gathered: _Gathered, cycles: int, code: list[str]) -> None:
        """Lets the time of the straight code since the last event pass."""
        if not gathered.ops:
            if cycles:
                code.append(f"t += {cycles}")
            return
        self.segments.append(Segment(cycles, tuple(gathered.ops)))
        conditions = "".join(f"{name}, " for name in gathered.conditions)
        code.append(f"t = seg({len(self.segments) - 1}, t" + (f", ({conditions}))" if conditions else ")"))
        gathered.clear()

    def _bundle(
        self, bundle: Bundle, offset: int, gathered: _Gathered, code: list[str], last_start: int
    ) -> tuple[int | None, list[str]]:
        """Code of one bundle. Events that take time first close the segment before them."""
        before: list[str] = []  # effects that read the registers as they were
        assigns: list[tuple[str, str, Instruction]] = []
        aliases: list[str] = []
        new_start = None
        for instruction in bundle.instructions:
            if id(instruction) in self.alive and self._is_event(instruction):
                if new_start is None:
                    self._close(gathered, offset - last_start, code)
                    new_start = last_start = offset
                before += self._guarded(instruction, self._event(instruction, bundle))
        for instruction in bundle.instructions:
            if instruction.opcode.startswith(("vmatmul", "vpop")) and "ccrf" not in instruction.opcode:
                before += self._matrix(instruction, offset - last_start, gathered)
            elif id(instruction) not in self.alive:
                _check_harmless(instruction)
            elif not self._is_event(instruction):
                self._scalar(instruction, before, assigns, aliases)
        return new_start, before + self._assignments(assigns) + aliases

    def _matrix(self, instruction: Instruction, offset: int, gathered: _Gathered) -> list[str]:
        predicate = instruction.predicate
        if predicate is not None and predicate.never:
            return []
        condition = None
        code = []
        if predicate is not None and predicate.register is not None:
            # The register may change before the segment is over: keep what it held here.
            condition = len(gathered.conditions)
            name = f"q{condition}"
            gathered.conditions.append(name)
            code.append(f"{name} = {self._condition(predicate)}")
        gathered.ops += matrix_ops(instruction, offset, self.machine, condition)
        return code

    # ---- events: what takes time by itself ----

    @staticmethod
    def _is_event(instruction: Instruction) -> bool:
        opcode = instruction.opcode
        return opcode.startswith(("dma.", "vwait")) or opcode in _EVENTS

    def _event(self, instruction: Instruction, bundle: Bundle) -> list[str]:
        opcode, operands = instruction.opcode, instruction.operands
        where = f"{self.program.name}, line {bundle.line}: {instruction.text}"
        turn = ["yield t"] if self.shared else []
        if opcode in ("dma.done.wait", "vwait.ge", "vwait.ge.trace"):
            flag, granules = (self._operand(text) for text in operands[:2])
            return [*turn, *_until(f"wait(t, {flag}, {granules}, {where!r})"), "t = r"]
        if opcode == "vsyncadd.remote":
            return [*turn, f"signal(t, {self._operand(operands[0])}, {self._operand(operands[1])})"]
        if opcode == "vpush.ccrf":
            return [*turn, f"send(t, {self._operand(operands[0])})"]
        if opcode == "vpop.ccrf":
            dest = self._dest(instruction)
            return [*turn, *_until(f"receive(t, {where!r})"), f"t, {dest or '_'} = r"]
        if opcode == "inlined_call":
            if "<late-" in instruction.comment:
                return []  # set-up and clean-up by the runtime, before and after the program
            called = _CALLED.search(instruction.comment)
            if called is None:
                raise SimulationError(f"a call of nothing: {instruction.text} {instruction.comment}")
            return [f"t = yield from call(t, {called.group(1)!r})"]
        ends = copy_ends(self.program, instruction)
        size, flag = self._operand(operands[1]), self._operand(operands[3])
        return [*turn, f"t = start(t, {flag}, {size}, {int(ends.source == 'hbm')}, {int(ends.destination == 'hbm')})"]

    def _guarded(self, instruction: Instruction, code: list[str]) -> list[str]:
        predicate = instruction.predicate
        if predicate is None or not code:
            return code
        if predicate.register is None:
            return [] if predicate.never else code
        return [f"if {self._condition(predicate)}:", *(f"    {line}" for line in code)]

    # ---- instructions that only compute ----

    def _scalar(
        self,
        instruction: Instruction,
        before: list[str],
        assigns: list[tuple[str, str, Instruction]],
        aliases: list[str],
    ) -> None:
        opcode, operands = instruction.opcode, instruction.operands
        base = opcode.split(".")[0]
        dest = self._dest(instruction)
        if opcode == "sbr.rel":
            if instruction.predicate is not None:
                before.append(f"jump = {self._condition(instruction.predicate)}")
        elif opcode == "vsyncadd":
            before += self._guarded(instruction, [f"add({self._operand(operands[0])}, {self._operand(operands[1])})"])
        elif opcode == "vsyncpa":
            before += self._guarded(instruction, [f"put({self._operand(operands[0])}, {self._operand(operands[1])})"])
        elif base == "sst":
            place, value = operands[0], self._operand(operands[1])
            slot = spill_slot(place)
            if slot is not None:
                self.variables.add(slot)
                assigns.append((slot, value, instruction))
            else:
                self._use(place)
                before += self._guarded(instruction, [f"store({address(place, self.names)}, {value})"])
        elif base == "sld":
            assert dest is not None
            slot = spill_slot(operands[0])
            if slot is not None:
                self.variables.add(slot)
            self._use(operands[0])
            value = slot or f"load({address(operands[0], self.names)}, {instruction.comment!r})"
            assigns.append((dest, value, instruction))
        elif opcode == "vpush":
            assigns.append((dest or "_", self._operand(operands[0]), instruction))
        elif opcode == "vmov":
            value = operands[0] if re.fullmatch(r"\d+", operands[0]) else "None"
            assigns.append((dest or "_", value, instruction))
        elif opcode in ("sdivrem.u32", "spop", "spop.drf"):
            self._queued(instruction, before, assigns)
        else:
            value = expression(instruction, self.names)
            if value is None or dest is None:
                if opcode in IGNORED:
                    return
                raise SimulationError(f"not understood: {instruction.text}")
            for text in operands:
                self._use(text)
            if base == "int_to_ptr":
                if value != dest:
                    aliases += self._guarded(instruction, [f"{dest} = {value}"])
            else:
                assigns.append((dest, value, instruction))

    def _queued(self, instruction: Instruction, before: list[str], assigns: list[tuple[str, str, Instruction]]) -> None:
        """Division and what the vector side pushes: results are fetched by a later instruction."""
        dest = self._dest(instruction)
        assert dest is not None
        if instruction.opcode == "sdivrem.u32":
            a, b = (self._operand(text) for text in instruction.operands)
            results = {"kRem": f"[{a} % {b}]", "kQuo": f"[{a} // {b}]", "kDiv": f"[{a} // {b}]"}.get(
                instruction.comment.strip(), f"[{a} // {b}, {a} % {b}]"
            )
            assigns.append((dest, results, instruction))
            return
        source = self._operand(instruction.operands[0])
        assigns.append((dest, f"{source}.pop(0)" if instruction.opcode == "spop.drf" else source, instruction))

    def _assignments(self, assigns: Sequence[tuple[str, str, Instruction]]) -> list[str]:
        """All reads of a bundle come before its writes: where that shows, everything is assigned at once."""
        pairs = []
        for dest, value, instruction in assigns:
            predicate = instruction.predicate
            if predicate is not None and predicate.register is None and predicate.never:
                continue
            if predicate is not None and predicate.register is not None:
                value = f"({value}) if {self._condition(predicate)} else {dest}"
            pairs.append((dest, value))
        written: set[str] = set()
        for dest, value in pairs:
            if written & set(re.findall(r"\w+", value)):
                targets = ", ".join(dest for dest, _ in pairs)
                return [f"{targets} = {', '.join(value for _, value in pairs)}"]
            written.add(dest)
        return [f"{dest} = {value}" for dest, value in pairs]

    # ---- names ----

    def _dest(self, instruction: Instruction) -> str | None:
        if instruction.dest is None:
            return None
        dest = physical(instruction.dest) if "_" in instruction.dest else f"x{instruction.dest}"
        self.variables.add(dest)
        return dest

    def _use(self, text: str) -> None:
        self.variables.update(re.findall(r"%\w+_((?:s|p|v)\d+)\b", text))

    def _operand(self, text: str) -> str:
        self._use(text)
        named = re.fullmatch(r"%(\d+)", text)
        if named:
            self.variables.add(f"x{named.group(1)}")
            return f"x{named.group(1)}"
        return operand(text, self.names)

    def _condition(self, predicate: Predicate) -> str:
        if predicate.register is None:
            return str(not predicate.never)
        self.variables.add(predicate.register)
        return f"not {predicate.register}" if predicate.negated else predicate.register


def _check_harmless(instruction: Instruction) -> None:
    """What decides nothing need not be understood, if all it does is to write a register or scalar memory."""
    opcode = instruction.opcode
    if instruction.dest is None and opcode not in IGNORED and opcode[0] != "v" and opcode != "sst":
        raise SimulationError(f"not understood: {instruction.text}")


def _until(attempt: str) -> list[str]:
    """Tries until another core has made it possible."""
    return [f"r = {attempt}", "while r is None:", "    yield None", f"    r = {attempt}"]


class _Gathered:
    """What has been seen since the last event."""

    def __init__(self) -> None:
        self.ops: list[MatrixOp] = []
        self.conditions: list[str] = []

    def clear(self) -> None:
        self.ops, self.conditions = [], []


def _dispatch(bodies: Sequence[list[str]], first: int, end: int, indent: str) -> list[str]:
    """Finds the block by halving: a loop of forty blocks costs six comparisons a round."""
    if end - first == 1:
        return [indent + line for line in bodies[first]]
    middle = (first + end) // 2
    return [
        f"{indent}if block < {middle}:",
        *_dispatch(bodies, first, middle, indent + " "),
        f"{indent}else:",
        *_dispatch(bodies, middle, end, indent + " "),
    ]
