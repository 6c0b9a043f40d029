"""A function compiled for a chip once, whose program then runs with other constants of the chip's model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from systolic.chips import Chip, MachineModel
from systolic.compiler import CompiledProgram
from systolic.simulator import PreparedProgram, SimulatedRun
from systolic.support.bugs import reports_bugs
from systolic.timing.call import run_on_chip
from systolic.timing.compiled import prepare_program
from systolic.timing.contents import ProgramContents
from systolic.timing.program_file import SavedProgram, write_program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A compiled program that has been read, with its arguments' values. `prepare` and `load_program` make one.

    Attributes:
      name: the function's.
      chip: the chip that it was compiled for; `run` uses its constants unless told otherwise.
      compiled: the compiler's output: listings, HLO, its account of memory.
      contents: values of arguments and kernels' operands that a run needs.
      prepared: the translated listings.
    """

    name: str
    chip: Chip
    compiled: CompiledProgram
    contents: ProgramContents
    prepared: PreparedProgram

    def __repr__(self) -> str:
        return f"Program(name={self.name!r}, chip={self.chip.name!r})"

    @reports_bugs
    def run(self, *, machine: MachineModel | None = None, spans: int = 0) -> SimulatedRun:
        """Execute the program on the chip's model, in this process. Nothing is compiled.

        Args:
          machine: the model with other constants, such as `dataclasses.replace(program.chip.machine,
            hbm_bytes_per_s=3.2e12)`; None: the chip's own. Every constant counts. Those that the program was compiled
            for (`mxu_count`, `mxu_rows`, `mxu_columns`, `branch_delay_slots`) cannot change.
          spans: number of the timeline's to keep, of each kind, from its beginning and from its end.

        Raises:
          ConstantsError: a constant that cannot change, or a value that no hardware has.
          SimulationError: with these constants the program reaches an instruction that is not understood.
        """
        chip = self.chip if machine is None else replace(self.chip, machine=machine)
        return run_on_chip(self.prepared, self.contents, chip, spans)

    @reports_bugs
    def save(self, path: str | Path) -> None:
        """Write one file, which appears whole or not at all, for `load_program`.

        It holds the listings, the contents and the machine model, and no code.

        Raises:
          ProgramFileError: the program is too large for a file.
          OSError: the file cannot be written.
        """
        saved = SavedProgram(name=self.name, chip=self.chip, compiled=self.compiled, contents=(self.contents,))
        write_program(Path(path), saved)

    def __reduce__(self) -> tuple[Any, ...]:
        # The listings' Python functions are not pickled: the receiver translates the program again.
        return translated, (self.name, self.chip, self.compiled, self.contents)


def translated(name: str, chip: Chip, compiled: CompiledProgram, contents: ProgramContents) -> Program:
    """Return a program ready to run; raise SimulationError if its listings are not understood."""
    prepared = prepare_program(compiled, chip)
    return Program(name=name, chip=chip, compiled=compiled, contents=contents, prepared=prepared)
