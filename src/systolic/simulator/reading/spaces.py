"""Where a program's copies go from and to, and in what pieces: HBM, VMEM, v4's CMEM, scalar memory or the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.listing import Instruction, Program

_DIRECTION = re.compile(r"dma\.(\w+)_to_(\w+)$")
_DESCRIBED = re.compile(r"\b([a-z]+)-to-([a-z]+)\b")  # of `dma.general`, in its comment
_SPACES = ("hbm", "vmem", "cmem", "smem", "host", "sflag")
_ALLOCATION = re.compile(r"#(\w+)", re.ASCII)
_RESOLVABLE = re.compile(r"^\[resolvable:\$\w+\] ")
_VIRTUAL = re.compile(r"%(\w+)_s\d+")

# A strided copy moves steps of 512 bytes; its strides count granules of 32 bytes, also on v4. Seen where both are
# printed beside the shape of a window.
_STEP_BYTES = 512
_STRIDE_BYTES = 32


@dataclass(frozen=True, slots=True)
class CopyEnds:
    """Memory spaces of a copy's two ends."""

    source: str
    destination: str


def is_copy(instruction: Instruction) -> bool:
    """Whether the instruction starts a copy."""
    return instruction.opcode.startswith("dma.") and instruction.opcode != "dma.done.wait"


class CopyReader:
    """What a program's copies are, as far as the text says."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._definitions = {
            inner.dest.rsplit("_", 1)[0]: inner
            for bundle in program.bundles
            for inner in bundle.instructions
            if inner.dest is not None and "_" in inner.dest
        }

    def ends(self, instruction: Instruction) -> CopyEnds:
        """The ends of a copy: in its opcode, or, for `dma.general`, in its comment or where its addresses are from.

        Raises:
          SimulationError: an opcode or an address whose space cannot be told.
        """
        named = _DIRECTION.match(instruction.opcode)
        if named and set(named.groups()) <= {*_SPACES, "host_iova"}:
            return CopyEnds(*named.groups())
        if instruction.opcode != "dma.general":
            raise SimulationError(f"not understood: {instruction.text}")
        described = _DESCRIBED.search(instruction.comment)
        if described and set(described.groups()) <= set(_SPACES):
            return CopyEnds(*described.groups())
        source, destination = instruction.operands[0], instruction.operands[2]
        return CopyEnds(self._space(source, instruction), self._space(destination, instruction))

    def run_bytes(self, instruction: Instruction) -> int | None:
        """Bytes that a copy moves in one piece before it strides on; 0: all of them; None: the text does not say."""
        if instruction.opcode == "dma.general":  # its strides are in a descriptor in scalar memory
            return None
        strides = instruction.operands[4:7]
        if len(strides) < 3:
            return 0
        numbers = [self._constant(text) for text in strides]
        if None in numbers:
            return None
        source, destination, steps = (number or 0 for number in numbers)
        run = steps * _STEP_BYTES
        return 0 if source * _STRIDE_BYTES == destination * _STRIDE_BYTES == run else run

    def followed(self, *, top_level: bool) -> frozenset[int]:
        """`id`s of the copies whose contents may get to the scalar side.

        Those are the ones into scalar memory. In the top-level program, and in one that moves words from VMEM to the
        scalar side, they may have come with any other copy.

        Raises:
          SimulationError: a copy that is not understood.
        """
        copies: list[tuple[Instruction, CopyEnds]] = []
        loads_words = top_level
        for bundle in self._program.bundles:
            for instruction in bundle.instructions:
                loads_words = loads_words or instruction.opcode == "vld"
                if not is_copy(instruction):
                    continue
                try:
                    copies.append((instruction, self.ends(instruction)))
                except SimulationError as error:
                    raise SimulationError(f"{self._program.name}, line {bundle.line}: {error}") from error
        if loads_words or any(ends.destination == "smem" and ends.source != "hbm" for _, ends in copies):
            return frozenset(id(instruction) for instruction, _ in copies)
        return frozenset(id(instruction) for instruction, ends in copies if "smem" in (ends.source, ends.destination))

    def _constant(self, text: str) -> int | None:
        if re.fullmatch(r"\d+", text):
            return int(text)
        match = _VIRTUAL.match(text)
        defined = self._definitions.get(match.group(1)) if match else None
        if defined is None or defined.opcode != "smov" or not re.fullmatch(r"\d+", defined.operands[0]):
            return None
        return int(defined.operands[0])

    def _space(self, register: str, copy: Instruction) -> str:
        pending, seen = [register], set()
        while pending:
            match = _VIRTUAL.match(_RESOLVABLE.sub("", pending.pop(0)))
            if match is None or match.group(1) in seen:
                continue
            seen.add(match.group(1))
            defined = self._definitions.get(match.group(1))
            if defined is None:
                continue
            space = defined.opcode.rsplit(".", 1)[-1]
            if space in _SPACES:
                return space
            for name in _ALLOCATION.findall(" ".join(defined.operands)):
                if name in self._program.spaces:
                    return self._program.spaces[name]
            pending += defined.operands
        raise SimulationError(f"the memory space of {register} cannot be told: {copy.text}")
