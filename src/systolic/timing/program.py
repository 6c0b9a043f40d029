"""A function compiled for a chip once, whose program then runs with other constants of the chip's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from systolic.bugs import reports_bugs
from systolic.chips import Chip, FlagValue, MachineModel, SliceShape, with_flags
from systolic.chips import chip as chip_named
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
    tracing_settings,
    with_jit_options,
)
from systolic.simulator import PreparedProgram, SimulatedRun
from systolic.timing.compiled import kernel_contents, prepare_program, target_of, top_level_hlo
from systolic.timing.contents import ProgramContents, RecordedOperands, parameter_contents
from systolic.timing.program_file import SavedProgram, read_program, write_program
from systolic.timing.slice_program import SliceProgram, slice_translated, submit_slice_preparation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A compiled program that has been read, with what its arguments hold. `prepare` and `load_program` make one.

    Attributes:
      name: of the function.
      chip: the chip that it was compiled for; `run` uses its constants unless told otherwise.
      compiled: what the compiler left: listings, HLO, its account of memory.
      contents: what arguments and kernels' operands hold, as far as a run has to know it.
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
        """Executes the program on the chip's model, in this process. Nothing is compiled.

        Args:
          machine: the model with other constants, such as `dataclasses.replace(program.chip.machine,
            hbm_bytes_per_s=3.2e12)`; None: the chip's own. Every constant counts. Those that the program was compiled
            for (`mxu_count`, `mxu_rows`, `mxu_columns`, `branch_delay_slots`) cannot change.
          spans: of the timeline to keep, of each kind, from its beginning and from its end.

        Raises:
          ConstantsError: a constant that cannot change, or a value that no hardware has.
          SimulationError: with these constants the program comes to something that is not understood.
        """
        chip = self.chip if machine is None else replace(self.chip, machine=machine)
        contents = self.contents
        return self.prepared.run(
            chip, parameters=contents.parameters, operand_words=contents.operand_words, spans=spans
        )

    @reports_bugs
    def save(self, path: str | Path) -> None:
        """Writes one file, which appears whole or not at all, and which `load_program` reads.

        It holds the listings, the contents and the machine model, and no code.

        Raises:
          ProgramFileError: the program is too large for a file.
          OSError: the file cannot be written.
        """
        saved = SavedProgram(name=self.name, chip=self.chip, compiled=self.compiled, contents=(self.contents,))
        write_program(Path(path), saved)

    def __reduce__(self) -> tuple[Any, ...]:
        # The listings' Python functions do not travel: whoever gets the program translates it anew.
        return translated, (self.name, self.chip, self.compiled, self.contents)


def translated(name: str, chip: Chip, compiled: CompiledProgram, contents: ProgramContents) -> Program:
    """A program ready to run.

    Raises:
      SimulationError: the listings hold something that is not understood.
    """
    prepared = prepare_program(compiled, chip)
    return Program(name=name, chip=chip, compiled=compiled, contents=contents, prepared=prepared)


def prepare_in_worker(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    cached: bool,
    settings: Mapping[str, Any],
) -> Program:
    """Compiles `fn(*args)` and runs it once, to learn what its kernels' operands hold. Only for a worker.

    Takes and raises what `simulate_in_worker` does.
    """
    cache = ProgramCache() if cached else None
    compiled = compile_function(fn, args, target_of(chip), cache=cache, settings=settings)
    with at_stage("simulating"):
        prepared = prepare_program(compiled, chip)
        (known,) = kernel_contents(prepared, fn, args, values, target_of(chip), settings)
        operands = RecordedOperands(known)
        parameters = tuple(parameter_contents(top_level_hlo(prepared), values))
        prepared.run(chip, parameters=parameters, operand_words=operands.operand_words)
    contents = ProgramContents(parameters=parameters, operands=operands.found)
    return Program(name=function_name(fn), chip=chip, compiled=compiled, contents=contents, prepared=prepared)


def submit_preparation(
    pool: WorkerPool,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    chip: Chip,
    *,
    label: str,
    cached: bool = True,
) -> Future[Program]:
    """Has a worker prepare `fn(*args)`; takes and raises what `submit_simulation` does."""
    check_sharded_call(fn, args, None)
    shapes, values = abstract_arguments(args), argument_values(args)
    job = (with_jit_options(fn), shapes, values, chip, cached, tracing_settings())
    return pool.submit(prepare_in_worker, *job, label=label)


@overload
def prepare(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: None = None,
    flags: Mapping[str, FlagValue] | None = None,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
) -> Program: ...


@overload
def prepare(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: str,
    flags: Mapping[str, FlagValue] | None = None,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
) -> SliceProgram: ...


@reports_bugs
def prepare(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: str | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
) -> Program | SliceProgram:
    """Compiles `fn(*args)` for a chip that is not there, and reads it: a program that runs again within a moment.

    For those who study the simulator's model: `program.run(machine=…)` tells how long the same program takes with
    other constants. Arguments are those of `simulate`, and so are the errors; what they hold is kept with the program.

    Args:
      fn: any function that `jax.jit` takes, with or without Pallas calls. Bind what is static with `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
      chip: a name such as "v6e", or a record of your own.
      topology: of the slice that the function is sharded over, "2x4"; None: it runs on one device.
      flags: compiler flags by name.
      cached: use programs compiled before, and keep this one.
      time_limit_s: seconds of CPU time after which the compiler is stopped.
      memory_limit_bytes: of a compiler process and its children; None: what the machine can bear.
    """
    known = with_flags(chip_named(chip) if isinstance(chip, str) else chip, flags or {})
    label = f"{function_name(fn)} for {known.name}"
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        if topology is not None:
            return submit_slice_preparation(pool, fn, args, known, topology, label=label, cached=cached).result()
        return submit_preparation(pool, fn, args, known, label=label, cached=cached).result()


@reports_bugs
def load_program(path: str | Path, *, chip: str | Chip | None = None) -> Program | SliceProgram:
    """Reads a program that `Program.save` or `SliceProgram.save` wrote.

    Nothing is compiled, and nothing of the file is executed as it is.

    Args:
      path: the file.
      chip: a name or a record whose constants `run` uses in place of the saved ones; needed for a chip of your own that
        is not registered. None: the chip that was saved, with its constants of then.

    Raises:
      ProgramFileError: no such file, it is damaged, of another version of systolic, or of another chip.
      SimulationError: its listings hold something that this version does not understand.
    """
    known = chip_named(chip) if isinstance(chip, str) else chip
    saved = read_program(Path(path), known)
    if saved.topology is not None:
        shape = SliceShape.parse(saved.chip, saved.topology)
        return slice_translated(saved.name, shape, saved.compiled, saved.contents)
    (contents,) = saved.contents
    return translated(saved.name, saved.chip, saved.compiled, contents)
