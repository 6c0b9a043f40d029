"""Prepare programs to be run again and again: from a call, or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, overload

from systolic.chips import Chip, FlagValue, SliceShape, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import NamedFunction, WorkerPool, at_stage, function_name
from systolic.support.bugs import reports_bugs
from systolic.timing.call import Call, run_on_chip, run_on_slice
from systolic.timing.contents import ProgramContents, RecordedContents
from systolic.timing.program import Program, translated
from systolic.timing.program_file import read_program
from systolic.timing.slice_program import SliceProgram, slice_translated
from systolic.timing.unknown_values import naming_arguments


def prepare_in_worker(call: Call, cached: bool) -> Program | SliceProgram:
    """Compile a call and run it once, to learn the values of its kernels' operands. Only for a worker.

    Raises what `simulate_in_worker` does.
    """
    compiled = call.compiled(cached=cached)
    with at_stage("simulating"), naming_arguments(call):
        prepared = call.read(compiled)
        recorded = [RecordedContents(device) for device in call.contents(compiled, prepared)]
        if call.shape is None:
            run_on_chip(prepared, recorded[0], call.chip, 0)
        else:
            run_on_slice(prepared, recorded, call.shape, compiled.assignment, 0)
    contents = tuple(
        ProgramContents(parameters=tuple(device.parameters), operands=device.operands) for device in recorded
    )
    name = function_name(call.fn)
    if call.shape is None:
        return Program(name=name, chip=call.chip, compiled=compiled, contents=contents[0], prepared=prepared)
    return SliceProgram(name=name, shape=call.shape, compiled=compiled, contents=contents, prepared=prepared)


def submit_preparation(
    pool: WorkerPool,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    chip: Chip,
    *,
    label: str,
    cached: bool = True,
    topology: str | None = None,
) -> Future[Any]:
    """Let a worker prepare `fn(*args)`; takes and raises what `submit_simulation` does."""
    return pool.submit(prepare_in_worker, Call.of(fn, args, chip, topology), cached, label=label)


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
    """Compile `fn(*args)` for a chip that is not there, and read it: a program that runs again within a moment.

    To study the simulator's model, `program.run(machine=…)` simulates the same program with other constants. Arguments
    and errors are as for `simulate`; the arguments' values are kept with the program.

    Args:
      fn: any function that `jax.jit` takes, with or without Pallas calls. Bind static arguments with
        `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
      chip: a name such as "v6e", or your own record.
      topology: the slice that the function is sharded over, "2x4"; None: it runs on one device.
      flags: compiler flags by name.
      cached: reuse stored programs, and store new ones.
      time_limit_s: seconds of CPU time after which the compiler is stopped.
      memory_limit_bytes: for a compiler process and its children; None: chosen by the machine's memory.
    """
    target_chip = with_flags(chip_named(chip), flags)
    label = f"{function_name(fn)} for {target_chip.name}"
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return submit_preparation(pool, fn, args, target_chip, label=label, cached=cached, topology=topology).result()


@reports_bugs
def load_program(path: str | Path, *, chip: str | Chip | None = None) -> Program | SliceProgram:
    """Read a program that `Program.save` or `SliceProgram.save` wrote.

    Nothing is compiled, and nothing of the file is executed as it is.

    Args:
      path: the file.
      chip: a name or a record whose constants `run` uses in place of the saved ones; needed for a chip of your own that
        is not registered. None: the saved chip, with its saved constants.

    Raises:
      ProgramFileError: no such file, it is damaged, of another version of systolic, or of another chip.
      SimulationError: its listings hold something that this version does not understand.
    """
    target_chip = None if chip is None else chip_named(chip)
    saved = read_program(Path(path), target_chip)
    if saved.topology is not None:
        shape = SliceShape.parse(saved.chip, saved.topology)
        return slice_translated(saved.name, shape, saved.compiled, saved.contents)
    (contents,) = saved.contents
    return translated(saved.name, saved.chip, saved.compiled, contents)
