"""A function compiled for a slice once, whose program then runs with other constants of the chips' model and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from systolic.bugs import reports_bugs
from systolic.chips import Chip, Links, MachineModel, SliceShape
from systolic.chips.constants import check_links
from systolic.compiler import (
    CompiledProgram,
    NamedFunction,
    ProgramCache,
    WorkerPool,
    abstract_arguments,
    argument_values,
    at_stage,
    check_sharded_call,
    compile_function,
    function_name,
    topology_of,
    tracing_settings,
    with_slice_options,
)
from systolic.simulator import PreparedProgram, SliceRun
from systolic.timing.compiled import kernel_contents, prepare_program, target_of, top_level_hlo
from systolic.timing.contents import ProgramContents, RecordedOperands
from systolic.timing.program_file import SavedProgram, write_program
from systolic.timing.sliced import check_offloading, device_parameters, slice_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceProgram:
    """A compiled program of a slice that has been read, with what arguments hold.

    `prepare` and `load_program` make one.

    Attributes:
      name: of the function.
      shape: the slice that it was compiled for; `run` uses its chip's constants unless told otherwise.
      compiled: what the compiler left: listings, HLO, its account of memory.
      contents: of each partition, what arguments and kernels' operands hold, as far as a run has to know it.
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
        """Executes the program on the model of the slice, in this process. Nothing is compiled.

        Args:
          machine: the model of the chips with other constants; None: their own. See `Program.run`.
          links: the same of the links, such as `dataclasses.replace(program.shape.links, bytes_per_s=100e9)`.
          spans: of the timelines to keep, of each kind, from their beginning and from their end.

        Raises:
          ConstantsError: a constant that cannot change, or a value that no hardware has.
          SimulationError: with these constants the program comes to something that is not understood.
        """
        chip = self.shape.chip
        check_links(links or chip.links, chip.links)
        chip = replace(chip, machine=machine or chip.machine, links=links or chip.links)
        return self.prepared.run_slice(
            replace(self.shape, chip=chip),
            self.compiled.assignment,
            chip=chip,
            parameters=[each.parameters for each in self.contents],
            operand_words=[each.operand_words for each in self.contents],
            spans=spans,
        )

    @reports_bugs
    def save(self, path: str | Path) -> None:
        """Writes one file, which `systolic.load_program` reads; see `Program.save`.

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
        # The listings' Python functions do not travel: whoever gets the program translates it anew.
        return slice_translated, (self.name, self.shape, self.compiled, self.contents)


def slice_translated(
    name: str, shape: SliceShape, compiled: CompiledProgram, contents: tuple[ProgramContents, ...]
) -> SliceProgram:
    """A program of a slice, ready to run.

    Raises:
      SimulationError: the listings hold something that is not understood.
    """
    prepared = prepare_program(compiled, shape.chip)
    return SliceProgram(name=name, shape=shape, compiled=compiled, contents=contents, prepared=prepared)


def prepare_slice_in_worker(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    shape: SliceShape,
    cached: bool,
    settings: Mapping[str, Any],
) -> SliceProgram:
    """Compiles `fn(*args)` and runs it once, to learn what its kernels' operands hold. Only for a worker."""
    cache, target = ProgramCache() if cached else None, target_of(shape.chip, shape)
    compiled = compile_function(fn, args, target, cache=cache, settings=settings)
    with at_stage("simulating"):
        check_offloading(compiled)
        prepared = prepare_program(compiled, shape.chip)
        count = len(compiled.assignment)
        operands = list(map(RecordedOperands, kernel_contents(prepared, fn, args, values, target, settings, count)))
        parameters = device_parameters(compiled, top_level_hlo(prepared), values)
        prepared.run_slice(
            shape,
            compiled.assignment,
            chip=shape.chip,
            parameters=parameters,
            operand_words=[each.operand_words for each in operands],
        )
    contents = tuple(
        ProgramContents(parameters=tuple(its), operands=each.found)
        for its, each in zip(parameters, operands, strict=True)
    )
    return SliceProgram(name=function_name(fn), shape=shape, compiled=compiled, contents=contents, prepared=prepared)


def submit_slice_preparation(
    pool: WorkerPool,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    chip: Chip,
    topology: str,
    *,
    label: str,
    cached: bool = True,
) -> Future[SliceProgram]:
    """Has a worker prepare `fn(*args)`; takes and raises what `submit_simulation` does."""
    shape = slice_of(chip, topology)
    check_sharded_call(fn, args, topology_of(shape))
    shapes, values = abstract_arguments(args, shardings=True), argument_values(args)
    job = (with_slice_options(fn), shapes, values, shape, cached, tracing_settings())
    return pool.submit(prepare_slice_in_worker, *job, label=label)
