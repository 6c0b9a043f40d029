"""Run any function in TPU interpret mode on the CPU, and collect what the interpreter notices.

`pallas_call(interpret=…)` is the launcher's argument, so it is forced from outside while the function is traced. The
function is traced as for a chip, so code that asks for the device, such as `emit_pipeline`, gets an answer. The
interpreter's memory extends to whole registers, as the chip's does: copying the registers of an edge is not a fault.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from systolic.checking.access import Access
from systolic.checking.unkind import left_over
from systolic.checking.virtual_devices import traced_as_on
from systolic.checking.waiting import DeadlockError, TooSlowError, waited_for
from systolic.checking.watching import FIRST_BUFFER, FIRST_SEMAPHORE, Watch
from systolic.checking.windows import Windows
from systolic.chips import Chip
from systolic.compat import (
    accesses_compared_at_once,
    all_references,
    clocks_of_copies,
    conditions_of_runs,
    copies_between_devices_in_order,
    cores_compiled_once,
    empty_copies,
    interpret_params,
    interpreted_batches,
    interpreted_failure,
    interpreted_subcores,
    interpreter_reports,
    operands_without_transfers,
    races_found,
    watched_interpreter,
)
from systolic.support.bugs import runs_user_code

_ACCESS = r"(read|write) of \('(\w+)', (\d+), \d+, \d+\)\[.*?\] from \(?(-?\d+), -?\d+\)?,? ([^\n]*)"
_RACE = re.compile(rf"RACE DETECTED\n\s+{_ACCESS}\n(?:.*\n)*?\s+{_ACCESS}\n")
_PLACE = re.compile(r"(?P<file>[^\n]*?):(?P<line>\d+)(?::\d+)? \((?P<name>.*)\)")
_FIRST_COPY = 100  # reports number copies like devices, from here on
_COPY_CLOCKS = 16  # races with copies older than the last 16 may go unseen
_SEMAPHORE = re.compile(r"Semaphore (\d+) has non-zero count[^\n]*: (-?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a run. A kernel's result must not depend on them.

    Attributes:
      order: the seed of the order of steps along parallel axes.
      copies: "eager": a copy is done when it is started; "on_wait": when it is waited for.
      memory: the content of memory that was never written: NaN and the largest integers, zeros, or large finite
        numbers of both signs.
      cores: number of cores that share the steps along parallel axes.
      late: True: blocks are read as early, and written back as late, as on a TPU; False: in the order of the steps.
      spoiled: numbers of scratch buffers whose contents are overwritten when the blocks of all outputs end.
    """

    order: int = 0
    copies: Literal["eager", "on_wait"] = "on_wait"
    memory: Literal["nan", "zero", "large"] = "nan"
    cores: int = 1
    late: bool = False
    spoiled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two accesses to one buffer, one of them a write, without an order.

    Attributes:
      accesses: "read" or "write", each with its source line: "file.py:12 in name"; "" outside the kernel.
      memory: the memory of the buffer.
      buffer: the interpreter's number of the buffer, from 0.
      with_copy: True if a copy makes one of them, and a core the other.
    """

    accesses: tuple[tuple[str, str], tuple[str, str]]
    memory: str
    buffer: int
    with_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreted:
    """The results of a run.

    Attributes:
      outputs: the flat results.
      races: the races that were found.
      raced: True if there was a race, even one whose report could not be parsed.
      semaphore_left: the count of a semaphore when a kernel ended, which should be 0.
      signalled: the last signal of that semaphore.
      watch: the accesses.
      on_subcores: True if a kernel ran on the subcores of SparseCores.
    """

    outputs: tuple[np.ndarray, ...]
    races: tuple[Race, ...]
    raced: bool
    semaphore_left: int
    signalled: Access
    watch: Watch
    on_subcores: bool = False

    @property
    def has_nan(self) -> bool:
        """True if there is any NaN among the results."""
        return any(bool((output != output).any()) for output in self.outputs)


class Interpreter:
    """Runs one function, and reuses its compiled programs for the same conditions.

    Args:
      fn: takes the flat arguments.
      chip: the chip whose device it is traced for.
      mesh: axes of the mesh of devices on which it runs; None: one device.
      outputs: number of outputs of its kernel that have blocks, for spoiling scratch memory.

    Attributes:
      watch: the accesses of the last run.
    """

    def __init__(
        self, fn: Callable[..., Any], chip: Chip, mesh: Mapping[str, int] | None = None, *, outputs: int = 0
    ) -> None:
        self._fn = fn
        self._outputs = outputs
        self._chip = chip
        self._mesh = dict(mesh or {})
        self._conditions = Conditions()  # of the run that is going on
        self._compiled: dict[int, Callable[..., Any]] = {}  # by number of cores: other conditions act in the run
        self._on_subcores = False
        self._programs: dict[int, Any] = {}  # of cores
        self.watch = Watch()

    def run(
        self, arguments: Sequence[np.ndarray], conditions: Conditions, *, time_limit_s: float = math.inf
    ) -> Interpreted:
        """Run it.

        Args:
          arguments: flat.
          conditions: the conditions of the run.
          time_limit_s: seconds after which it is stopped, compiling not counted.

        Raises:
          DeadlockError: it waits forever.
          TooSlowError: it was stopped.
          Exception: any exception of the function while it is traced, or of the interpreter.
        """
        from jax.experimental.pallas import tpu as pltpu

        log = logging.getLogger("jax._src.callback")
        level = log.level
        windows = Windows(late=conditions.late, scratch=conditions.spoiled, outputs=self._outputs)
        self.watch = Watch(devices=math.prod(self._mesh.values()), windows=windows)
        self._conditions = conditions
        log.setLevel(logging.CRITICAL)  # it would show the traceback of an exception that is raised anyway
        try:
            with (
                traced_as_on(self._chip, self._mesh),
                all_references(),
                cores_compiled_once(self._programs),
                conditions_of_runs(lambda: self._conditions, left_over),
                accesses_compared_at_once(),
                clocks_of_copies(_COPY_CLOCKS),
                copies_between_devices_in_order(),
                empty_copies(),
                operands_without_transfers(),
                interpreter_reports() as reports,
            ):
                call = self._compiled.get(conditions.cores) or self._compile(arguments, conditions.cores)
                outputs = waited_for(lambda: _outputs(call, arguments), time_limit_s, self.watch)
                raced = races_found()
        except BaseException as error:
            if error.__cause__ is None and not isinstance(error, DeadlockError | TooSlowError):
                error.__cause__ = interpreted_failure()
            pltpu.reset_tpu_interpret_mode_state()
            raise
        finally:
            log.setLevel(level)
        text = reports.getvalue()
        left = _SEMAPHORE.search(text)
        signalled = self.watch.signals.get(int(left[1]) - FIRST_SEMAPHORE) if left else None
        return Interpreted(
            outputs=tuple(outputs),
            races=tuple(dict.fromkeys(_races(text))),
            raced=raced or "RACE DETECTED" in text,
            semaphore_left=int(left[2]) if left else 0,
            signalled=signalled or Access(),
            watch=self.watch,
            on_subcores=self._on_subcores,
        )

    def _compile(self, arguments: Sequence[np.ndarray], cores: int) -> Callable[..., Any]:
        from jax.experimental.pallas import tpu as pltpu

        params = interpret_params(
            detect_races=True,
            out_of_bounds_reads="raise",
            num_cores_or_threads=cores,
            buffer_bounds="padded",
            grid_point_recorder=lambda *point: self.watch.at_grid_point(*point),
        )
        watch = watched_interpreter(lambda *call: self.watch.called(*call))
        with pltpu.force_tpu_interpret_mode(params), watch, interpreted_batches(), interpreted_subcores() as meshes:
            compiled = _compiled(self._fn, arguments)
        self._on_subcores = bool(meshes)
        self._compiled[cores] = compiled
        return compiled


@runs_user_code
def _compiled(fn: Callable[..., Any], arguments: Sequence[np.ndarray]) -> Callable[..., Any]:
    import jax

    # A new function each time, so that JAX does not reuse one that was traced under other conditions. XLA would
    # simplify x * mask to a selection, which hides the NaN that a TPU makes of it.
    exactly: dict[str, str | bool] = {"xla_disable_hlo_passes": "algsimp"}
    return jax.jit(lambda *operands: fn(*operands)).lower(*arguments).compile(compiler_options=exactly)


@runs_user_code
def _outputs(call: Callable[..., Any], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    import jax

    return [np.asarray(result) for result in jax.tree.leaves(call(*arguments))]


def _races(text: str) -> Iterator[Race]:
    for match in _RACE.finditer(text):
        kind, memory, buffer, accessor, place, other_kind, _, _, other_accessor, other_place = match.groups()
        accesses = ((kind, _place(place)), (other_kind, _place(other_place)))
        number = int(buffer) - FIRST_BUFFER
        with_copy = (int(accessor) < _FIRST_COPY) != (int(other_accessor) < _FIRST_COPY)
        yield Race(accesses=accesses, memory=memory, buffer=number, with_copy=with_copy)


def _place(text: str) -> str:
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        return ""
    name = match["name"].split(".")[-1]
    return f"{match['file']}:{match['line']} in {name}"


def words(conditions: Conditions) -> str:
    """Describe when copies are done, and the order of steps."""
    done = "done when they are started" if conditions.copies == "eager" else "done when they are waited for"
    late = ", blocks read early and written back late" if conditions.late else ""
    return f"{done}, order {conditions.order}{late}"
