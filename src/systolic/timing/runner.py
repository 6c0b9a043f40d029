"""Run experiments in worker processes, many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from systolic.compiler import WorkerPool
from systolic.timing import Measurement, submit_simulation
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome

Submit = Callable[[Experiment], Future[Measurement]]


class Progress:
    """Reports of running jobs; this base class shows nothing."""

    def planned(self, jobs: int) -> None:
        """Count `jobs` more."""

    def done(self, label: str) -> None:
        """Count a job that has ended; called from any thread."""

    def note(self, text: str) -> None:
        """Report a part of the answer while the rest is computed."""


QUIET = Progress()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A submitted experiment."""

    label: str
    job: Future[Measurement]

    def outcome(self) -> Outcome:
        """Wait for it.

        Raises:
          CompilerMissing: there is no TPU compiler on the machine.
          SystolicBug: this package is at fault, and not the function.
        """
        return Outcome.of(self.label, self.job)


def first_ended(running: Iterable[Running], timeout_s: float) -> list[Running]:
    """Wait until at least one job has ended; return none after the timeout."""
    jobs = list(running)
    done = wait([experiment.job for experiment in jobs], timeout=timeout_s, return_when=FIRST_COMPLETED).done
    return [experiment for experiment in jobs if experiment.job in done]


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with the results so far.

    Attributes:
      finished: the results so far.
    """

    def __init__(self, finished: Any) -> None:
        super().__init__("stopped")
        self.finished = finished


class Runner:
    """Compile and simulate experiments.

    Args:
      where: a pool of processes that compile, or a function that sends an experiment elsewhere.
      progress: counts the experiments that have ended.
    """

    def __init__(self, where: WorkerPool | Submit, progress: Progress = QUIET) -> None:
        self._submit = where if callable(where) else _sent_to(where)
        self.progress = progress

    def start(self, experiment: Experiment) -> Running:
        """Submit an experiment that was announced to `progress` before."""
        job: Future[Measurement]
        try:
            job = self._submit(experiment)
        except Exception as error:  # noqa: BLE001 -- arguments that cannot be described or sent are an outcome, too
            job = Future()
            job.set_exception(error)
        label = experiment.label
        job.add_done_callback(lambda _: self.progress.done(label))
        return Running(label=label, job=job)

    def run(self, experiments: Iterable[Experiment]) -> list[Outcome]:
        """Return the outcomes of experiments, in their order; all are submitted before the first is waited for.

        Raises:
          Stopped: Ctrl-C was pressed; it has the outcomes of ended experiments, None for the others.
        """
        all_experiments = list(experiments)
        self.progress.planned(len(all_experiments))
        sent: list[Running] = []
        try:
            sent += map(self.start, all_experiments)
            return [running.outcome() for running in sent]
        except KeyboardInterrupt:
            ended = [
                experiment.outcome() if experiment.job.done() and not experiment.job.cancelled() else None
                for experiment in sent
            ]
            raise Stopped([*ended, *[None] * (len(all_experiments) - len(sent))]) from None


def _sent_to(pool: WorkerPool) -> Submit:
    def submit(experiment: Experiment) -> Future[Measurement]:
        options = {
            "label": experiment.label,
            "cached": experiment.cached,
            "spans": experiment.spans,
            "topology": experiment.topology,
        }
        return submit_simulation(
            pool, experiment.fn, experiment.args, experiment.chip, **options, lines=experiment.lines
        )

    return submit
