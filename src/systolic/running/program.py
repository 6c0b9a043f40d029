"""One distinct program of a recording, while a worker compiles and simulates it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from systolic.compiler import CompilerError, function_name
from systolic.running.results import TimedProgram
from systolic.running.timed_function import TimedFunction
from systolic.steps import StepRun
from systolic.timing.outcome import Outcome


class UnsentError(CompilerError):
    """A function cannot be sent to a worker process, and has no time for that reason."""


@dataclass(slots=True, kw_only=True, eq=False)
class Program:
    """One distinct program.

    Attributes:
      number: counts programs from 0, in the order of their first calls.
      shapes: of its results, a pytree; None where values are computed.
      donated: whether each leaf of its arguments is given away.
      live_bytes: the most that live arrays took when it was called.
    """

    number: int
    function: TimedFunction  # kept, so that no other object gets its id
    arguments: str
    job: Future[StepRun]
    shapes: Any
    donated: Sequence[bool]
    calls: int = 0
    live_bytes: int = 0

    @property
    def label(self) -> str:
        return f"{self.name}({self.arguments})"

    @property
    def name(self) -> str:
        name, code = function_name(self.function), getattr(inspect.unwrap(self.function.function), "__code__", None)
        if name != "<lambda>" or code is None:
            return name
        return f"<lambda> {Path(code.co_filename).name}:{code.co_firstlineno}"

    def timed(self) -> TimedProgram:
        """Wait for the job.

        Raises:
          CompilerMissing: there is no TPU compiler on the machine.
          SystolicBug: this package is at fault, and not the function.
        """
        step, failure = None, None
        try:
            step = self.job.result()
        except Exception as error:  # noqa: BLE001 -- whatever the function raises in the worker is its outcome
            failure = Outcome.failed(self.label, error)
        return TimedProgram(
            name=self.name,
            arguments=self.arguments,
            calls=self.calls,
            live_bytes=self.live_bytes,
            step=step,
            status="ok" if failure is None else failure.status,
            reason="" if failure is None else failure.details,
        )
