"""One way to run many compilations and simulations, and one record of how each ended."""

from systolic.experiments.experiment import Experiment
from systolic.experiments.many import simulate_many
from systolic.experiments.outcome import Outcome
from systolic.experiments.runner import QUIET, Progress, Runner, Running, Stopped, Submit, first_ended

__all__ = [
    "QUIET",
    "Experiment",
    "Outcome",
    "Progress",
    "Runner",
    "Running",
    "Stopped",
    "Submit",
    "first_ended",
    "simulate_many",
]
