"""The outcome of an experiment: a time, or the reason why there is none."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from dataclasses import dataclass

from systolic.chips import SliceError, UnsupportedDtypeError
from systolic.compiler import (
    CompilerCrash,
    CompilerError,
    CompilerFlagError,
    CompilerMissing,
    CompilerOutOfMemory,
    CompilerRefusal,
    CompilerTimeout,
    FunctionExit,
    source_line,
)
from systolic.schedule import TilesError
from systolic.simulator import SimulatedRun, SimulationError, UnknownValueError
from systolic.simulator.slice.records import SliceRun
from systolic.spec import SpecError
from systolic.support.bugs import raise_own, runs_user_code
from systolic.support.status import Status
from systolic.support.summary import Summarised, Summary
from systolic.timing import Measurement

_STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (CompilerRefusal, "refused"),
    (CompilerTimeout, "timed out"),
    (CompilerOutOfMemory, "out of memory"),
    (CompilerCrash, "crashed"),
    (UnknownValueError, "unknown"),
    (SimulationError, "not simulated"),
    (UnsupportedDtypeError, "unsupported"),
    (SpecError, "illegal"),
    (TilesError, "illegal"),
    (SliceError, "illegal"),
)
# Their texts are this package's own sentences; for other errors the type is as informative as the text.
_NAMED = (CompilerError, FunctionExit, *(kind for kind, _ in _STATUSES))


_JAX_NOTE = "\n--------------------\n"  # JAX appends that its own frames were left out of the traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Summarised):
    """The outcome of one experiment.

    Attributes:
      label: the label of the experiment.
      status: "ok" if there is a time.
      reason: why there is no time, in one line.
      where: the line of the user's source that the reason is about, "file.py:12 in name", or "".
      measurement: the simulated time and its run; None: there is none.
      error: the raised exception.
    """

    label: str
    status: Status = "ok"
    reason: str = ""
    where: str = ""
    measurement: Measurement | None = None
    error: Exception | None = None

    @classmethod
    def of(cls, label: str, job: Future[Measurement]) -> Outcome:
        """Wait for a job.

        Raises:
          CompilerMissing: there is no TPU compiler on the machine.
          CompilerFlagError: it does not know a flag.
          SystolicBug: this package is at fault, and not the function.
        """
        try:
            return cls(label=label, measurement=_result(job))
        except Exception as error:  # noqa: BLE001 -- an error of the traced function is its outcome
            return cls.failed(label, error)

    @classmethod
    def failed(cls, label: str, error: Exception) -> Outcome:
        """Return the outcome of an experiment that raised; re-raise errors that are not outcomes, see `of`."""
        if isinstance(error, CompilerMissing | CompilerFlagError):
            raise error
        raise_own(error)
        if isinstance(error, CompilerRefusal):
            text, where = error.summary, error.where
        elif isinstance(error, _NAMED):
            text, where = _first_line(str(error)) or type(error).__name__, None
        else:
            text, where = f"{type(error).__name__}: {_first_line(str(error))}", source_line(error)
        # Bytes of a compiler's text that are not UTF-8 were decoded to surrogates, which no file accepts.
        reason = text.encode(errors="replace").decode()
        return cls(label=label, status=_status(error), reason=reason, where=where or "", error=error)

    @property
    def run(self) -> SimulatedRun | None:
        """Return the simulated run."""
        return self.measurement.run if self.measurement is not None else None

    @property
    def slice_run(self) -> SliceRun | None:
        """Return the simulated run of a slice; `run` belongs to the device that ends last."""
        return self.measurement.slice_run if self.measurement is not None else None

    @property
    def time_us(self) -> float | None:
        """The simulated time."""
        return self.measurement.time_us if self.measurement is not None else None

    @property
    def compile_s(self) -> float | None:
        """Seconds that the compiler took when it compiled the program."""
        return self.measurement.compile_s if self.measurement is not None else None

    @property
    def hbm_bytes(self) -> int | None:
        """Bytes read from and written to HBM."""
        return self.run.hbm_read_bytes + self.run.hbm_written_bytes if self.run is not None else None

    def summary(self) -> Summary:
        """Return the time and its parts, or the reason why there is none."""
        run = self.slice_run or self.run
        if run is None:
            return Summary(heading=f"{self.label}: {self.status}", facts={"why": self.located_reason})
        summary = run.summary()
        return dataclasses.replace(summary, heading=f"{self.label}: {summary.heading}")

    @property
    def located_reason(self) -> str:
        """The reason and the line that it is about."""
        return f"{self.reason} (at {self.where})" if self.where else self.reason

    @property
    def details(self) -> str:
        """The whole message, in all its lines, and its source line."""
        if self.error is None:
            return ""
        named = isinstance(self.error, _NAMED)
        text = str(self.error).split(_JAX_NOTE)[0].strip()
        text = text if named else f"{type(self.error).__name__}: {text}"
        return f"{text} (at {self.where})" if self.where and not named else text

    @property
    def lasting(self) -> bool:
        """True if a repetition would end the same way: a lost worker or a slow machine is not the function's fault."""
        return self.status not in ("timed out", "out of memory", "failed")

    def required(self) -> SimulatedRun:
        """Return the run, or raise the error that prevented it."""
        if self.error is not None:
            raise self.error
        assert self.run is not None
        return self.run


def _status(error: Exception) -> Status:
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return "failed"


@runs_user_code  # an error of a worker or a cluster is not the fault of the waiting code
def _result(job: Future[Measurement]) -> Measurement:
    return job.result()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
