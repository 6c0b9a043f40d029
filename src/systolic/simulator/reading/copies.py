"""Sources, targets and pieces of a program's copies: HBM, VMEM, v4's CMEM, scalar memory or the host."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.listing import Instruction, Program

_DIRECTION = re.compile(r"dma\.(\w+)_to_(\w+)$")
_DESCRIBED = re.compile(r"\b([a-z]+)-to-([a-z]+)\b")  # of `dma.general`, in its comment
_SPACES = ("hbm", "vmem", "cmem", "smem", "host", "sflag")
_HOST = "host_iova"
_ALLOCATION = re.compile(r"#(\w+)", re.ASCII)
_RESOLVABLE = re.compile(r"^\[resolvable:\$\w+\] ")
_VIRTUAL = re.compile(r"%(\w+)_s\d+")

# A strided copy moves steps of 512 bytes; its strides count granules of 32 bytes, also on v4. Seen where both are
# printed next to the shape of a window.
_STEP_BYTES = 512
_STRIDE_BYTES = 32

# `dma.general` has its strides in scalar memory, nine words: for each of three loops, the outermost first, the stride
# of the source and of the destination, and how often the loop within it runs; for the innermost, its number of
# steps. Seen with blocks whose shapes are known.
_DESCRIPTOR_WORDS = 9
_STORE = re.compile(r"^\[smem:\[#(\w+)(?: \+ \$0x([0-9a-f]+))?\]\]$")


@dataclass(frozen=True, slots=True)
class CopyEnds:
    """Memory spaces of a copy's two ends."""

    source: str
    destination: str


class CopyReader:
    """Read a program's copies, as far as the text names them."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._descriptors = self._read_descriptors(program)

    @functools.cached_property
    def _definitions(self) -> dict[str, Instruction]:
        return {
            inner.dest.rsplit("_", 1)[0]: inner
            for inner in self._program.instructions
            if inner.dest is not None and "_" in inner.dest
        }

    def ends(self, instruction: Instruction) -> CopyEnds:
        """Find the ends of a copy: in its opcode, or, of `dma.general`, in its comment or by its addresses.

        Raises:
          SimulationError: an opcode or an address whose space cannot be told.
        """
        named = _DIRECTION.match(instruction.opcode)
        if named and set(named.groups()) <= {*_SPACES, _HOST}:
            return CopyEnds(*("host" if space == _HOST else space for space in named.groups()))
        if instruction.opcode != "dma.general":
            raise SimulationError(f"not understood: {instruction.text}")
        described = _DESCRIBED.search(instruction.comment)
        if described and set(described.groups()) <= set(_SPACES):
            return CopyEnds(*described.groups())
        source, destination = instruction.operands[0], instruction.operands[2]
        return CopyEnds(self._space(source, instruction), self._space(destination, instruction))

    def size(self, instruction: Instruction) -> str:
        (size,) = instruction.operands[instruction.traits.reads]
        return size

    def run_bytes(self, instruction: Instruction) -> int | None:
        """Find how many bytes a copy moves in one piece before it strides on; 0: all; None: the text does not say."""
        if instruction.opcode == "dma.general":
            return self._described_run(instruction)
        strides = instruction.operands[5 if _HOST in instruction.opcode else 4 :][:3]
        if len(strides) < 3:
            return 0
        numbers = [self._constant(text) for text in strides]
        if None in numbers:
            return None
        source, destination, steps = (number or 0 for number in numbers)
        run = steps * _STEP_BYTES
        return 0 if source * _STRIDE_BYTES == destination * _STRIDE_BYTES == run else run

    def followed(self, *, top_level: bool) -> frozenset[int]:
        """Return the `id`s of the copies whose contents may get to the scalar side.

        Those are the ones into scalar memory. In the top-level program, and in one that moves words from VMEM to the
        scalar side, they may have come with any other copy.

        Raises:
          SimulationError: a copy that is not understood.
        """
        copies: list[tuple[Instruction, CopyEnds]] = []
        loads_words = top_level
        for bundle in self._program.bundles:
            for instruction in bundle.instructions:
                loads_words = loads_words or instruction.traits.kind == "vector load"
                if instruction.traits.kind != "copy":
                    continue
                try:
                    copies.append((instruction, self.ends(instruction)))
                except SimulationError as error:
                    raise SimulationError(f"{self._program.name}, line {bundle.line}: {error}") from error
        if loads_words or any(ends.destination == "smem" and ends.source != "hbm" for _, ends in copies):
            return frozenset(id(instruction) for instruction, _ in copies)
        return frozenset(id(instruction) for instruction, ends in copies if "smem" in (ends.source, ends.destination))

    def _read_descriptors(self, program: Program) -> dict[str, dict[int, int | None]]:
        """Read what the program stores in scalar memory, by allocation and place; None: not always the same."""
        result: dict[str, dict[int, int | None]] = {}
        for instruction in program.instructions:
            match = _STORE.match(instruction.operands[0]) if instruction.traits.kind == "store" else None
            if match is None:
                continue
            words = result.setdefault(match.group(1), {})
            place, value = int(match.group(2) or "0", 16), self._constant(instruction.operands[1])
            words[place] = value if words.get(place, value) == value else None
        return result

    def _described_run(self, instruction: Instruction) -> int | None:
        """Return the bytes in one piece: contiguous in HBM, in whatever order they are moved."""
        ends = self.ends(instruction)
        allocation = _ALLOCATION.search(instruction.operands[5]) if len(instruction.operands) > 5 else None
        words = self._descriptors.get(allocation.group(1), {}) if allocation else {}
        numbers = [words.get(place) for place in range(_DESCRIPTOR_WORDS)]
        if "hbm" not in (ends.source, ends.destination) or len(words) != _DESCRIPTOR_WORDS or None in numbers:
            return None
        addresses = [number or 0 for number in numbers]
        outer, *inner = addresses[::3] if ends.source == "hbm" else addresses[1::3]
        middle_runs, inner_runs, steps = addresses[2::3]
        run = steps * _STEP_BYTES
        for stride, runs in sorted(zip(inner, (middle_runs, inner_runs), strict=True)):
            if stride * _STRIDE_BYTES != run:
                return run
            run *= runs
        return 0 if outer * _STRIDE_BYTES == run else run

    def _constant(self, text: str) -> int | None:
        if re.fullmatch(r"\d+", text):
            return int(text)
        match = _VIRTUAL.match(text)
        defined = self._definitions.get(match.group(1)) if match else None
        if defined is None or defined.traits.kind != "move" or not re.fullmatch(r"\d+", defined.operands[0]):
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
