"""Translates a program's scalar side into one Python function that computes when everything happens.

The function holds the machine's registers in local variables and goes from basic block to basic block. Copies, waits
and the matrix units are calls into `copies` and `matrix`; everything else between them is a number of cycles.

It is a generator. Where cores share a device it yields its time before each act on what they share, so that the one
that is behind goes first; and it yields None where a wait can't be satisfied by what is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from systolic.chips import MachineModel
from systolic.simulator.blocks import Block, split_blocks
from systolic.simulator.bundle import BundleCode, is_matrix
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Instruction, Program
from systolic.simulator.liveness import live_instructions
from systolic.simulator.matrix import MatrixOp, Segment, matrix_ops


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
        self.blocks = split_blocks(program, machine.branch_delay_slots)
        self.code = BundleCode(program, live_instructions(program, self.blocks), shared=shared)
        self.segments: list[Segment] = []

    def translate(self) -> Translation:
        bodies = [self._block(number, block) for number, block in enumerate(self.blocks)]
        registers = " = ".join(sorted(self.code.variables))
        lines = [
            "def run(t, machine):",
            "    start, wait, add, put = machine.start, machine.wait, machine.add, machine.put",
            "    seg, load, store, call = machine.segment, machine.load, machine.store, machine.call",
            "    send, receive, signal = machine.send, machine.receive, machine.signal",
            *([f"    {registers} = None"] if registers else []),
            "    limit, too_long = machine.max_rounds, machine.too_long",
            "    block = rounds = 0",
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
            addresses=self.code.names.addresses,
            source=source,
            bundles=len(self.program.bundles),
        )

    # ---- one block ----

    def _block(self, number: int, block: Block) -> list[str]:
        code: list[str] = []
        gathered = _Gathered()
        last_start = 0
        for index in range(block.first, block.last + 1):
            bundle = self.program.bundles[index]
            offset = index - block.first
            try:
                if events := self.code.events(bundle):
                    self._close(gathered, offset - last_start, code)
                    last_start = offset
                    code += events
                for instruction in filter(is_matrix, bundle.instructions):
                    code += self._matrix(instruction, offset - last_start, gathered)
                code += self.code.rest(bundle)
            except SimulationError as error:
                raise SimulationError(f"{self.program.name}, line {bundle.line}: {error}") from error
            except (LookupError, ValueError) as error:  # fewer operands, or others, than the opcode has
                text = "  ;;  ".join(instruction.text for instruction in bundle.instructions)
                raise SimulationError(f"{self.program.name}, line {bundle.line}: not understood: {text}") from error
        length = block.last - block.first + block.last_cycles
        self._close(gathered, length - last_start, code)
        return code + self._leave(number, block)

    def _leave(self, number: int, block: Block) -> list[str]:
        def to(target: int | None) -> list[str]:
            if target is None:
                return ["return t"]
            # A program that was misread may go round for ever.
            guard = ["rounds += 1", "if rounds > limit:", "    too_long()"] if target <= number else []
            return [*guard, f"block = {target}"]

        if block.branch is None:
            return to(block.following)
        instruction = next(i for i in self.program.bundles[block.branch].instructions if i.opcode == "sbr.rel")
        if instruction.predicate is None:
            return to(block.taken)
        taken, following = ([f"    {line}" for line in to(target)] for target in (block.taken, block.following))
        return ["if jump:", *taken, "else:", *following]

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
            code.append(f"{name} = {self.code.condition(predicate)}")
        gathered.ops += matrix_ops(instruction, offset, self.machine, condition)
        return code


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
