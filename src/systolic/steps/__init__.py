"""Predict a whole training or decoding step of a sharded model: its time, its memory, and where the time goes."""

from systolic.steps.call import Step
from systolic.steps.grouping import whole_run
from systolic.steps.making import StepMaker
from systolic.steps.memory import DoesNotFitError
from systolic.steps.parts import BETWEEN, OTHER, PASSES, Pass
from systolic.steps.predict import TIME_LIMIT_S, step, submit_step
from systolic.steps.records import PartRun, StepChange, StepMemory, StepRun

__all__ = [
    "BETWEEN",
    "OTHER",
    "PASSES",
    "TIME_LIMIT_S",
    "DoesNotFitError",
    "PartRun",
    "Pass",
    "Step",
    "StepChange",
    "StepMaker",
    "StepMemory",
    "StepRun",
    "step",
    "submit_step",
    "whole_run",
]
