"""A program that was compiled for a slice once, and runs again with other constants of chips and links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from systolic.chips import Chip, Links, MachineModel, SliceShape
from systolic.chips.constants import check_links
from systolic.compiler import CompiledProgram
from systolic.simulator import PreparedProgram, SliceRun
from systolic.support.bugs import reports_bugs
from systolic.timing.call import run_on_slice
from systolic.timing.compiled import prepare_program
from systolic.timing.contents import ProgramContents
from systolic.timing.program_file import SavedProgram, write_program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceProgram:
    """A compiled program of a slice that has been read, with its arguments' values.

    `prepare` and `load_program` make one.

    Attributes:
      name: name of the function.
      shape: the slice that it was compiled for; `run` uses its chip's constants unless told otherwise.
      compiled: the compiler's output: listings, HLO, its account of memory.
      contents: each partition's values of arguments and kernels' operands that a run needs.
      prepared: the translated listings.
    """

    name: str
    shape: SliceShape
    compiled: CompiledProgram
    contents: tuple[ProgramContents, ...]
    prepared: PreparedProgram

    def __repr__(self) -> str:
        return f"SliceProgram(name={self.name!r}, chip={self.shape.chip.name!r}, topology={self.shape.name!r})"

    @property
    def chip(self) -> Chip:
        """The chips of the slice."""
        return self.shape.chip

    @reports_bugs
    def run(self, *, machine: MachineModel | None = None, links: Links | None = None, spans: int = 0) -> SliceRun:
        """Execute the program on the model of the slice, in this process. Nothing is compiled.

        Args:
          machine: the model of the chips with other constants; None: their own. See `Program.run`.
          links: the links' model with other constants, such as `dataclasses.replace(program.shape.links,
            bytes_per_s=100e9)`.
          spans: number of timeline spans of each kind to keep, from the beginning and from the end.

        Raises:
          ConstantsError: a constant cannot be changed, or a value is impossible.
          SimulationError: with these constants the program reaches an instruction that is not understood.
        """
        chip = self.shape.chip
        check_links(links or chip.links, chip.links)
        chip = replace(chip, machine=machine or chip.machine, links=links or chip.links)
        shape = replace(self.shape, chip=chip)
        return run_on_slice(self.prepared, self.contents, shape, self.compiled.assignment, spans)

    @reports_bugs
    def save(self, path: str | Path) -> None:
        """Write one file for `systolic.load_program`; see `Program.save`.

        Raises:
          ProgramFileError: the program is too large for a file.
          OSError: the file cannot be written.
        """
        saved = SavedProgram(
            name=self.name,
            chip=self.shape.chip,
            compiled=self.compiled,
            contents=self.contents,
            topology=self.shape.name,
        )
        write_program(Path(path), saved)

    def __reduce__(self) -> tuple[Any, ...]:
        # The listings' Python functions are not pickled: the receiver translates the program again.
        return slice_translated, (self.name, self.shape, self.compiled, self.contents)


def slice_translated(
    name: str, shape: SliceShape, compiled: CompiledProgram, contents: tuple[ProgramContents, ...]
) -> SliceProgram:
    """Return a program of a slice, ready to run; raise SimulationError if its listings are not understood."""
    prepared = prepare_program(compiled, shape.chip)
    return SliceProgram(name=name, shape=shape, compiled=compiled, contents=contents, prepared=prepared)
