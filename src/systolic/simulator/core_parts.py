"""Records that a sequencer executes a program with: a device's shared parts, one core, and one execution."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from systolic.chips import MachineModel
from systolic.simulator.assumptions import Assumption
from systolic.simulator.barna_cores import BarnaCores
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.loop_timer import LoopTimer
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.mxu import Mxus
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.mailboxes import Mailboxes
from systolic.simulator.meeting import Meeting
from systolic.simulator.other_devices import OtherDevices
from systolic.simulator.rounds.repeated import RepeatedRounds
from systolic.simulator.sparse_core.device import SparseCores
from systolic.simulator.translating.translate import Translation

# A program in progress. It yields the time at which it is about to act on what cores share, or None where it can't go
# on until another core has acted, and returns the time at which it is over.
Progress = Generator[int | None, None, int]

# Registers handed to a called program.
Passed = Sequence[tuple[str, "int | Unknown"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """Parts that the cores of a device share; `others` are the other devices of a slice, None where there are none."""

    dma: DmaEngine
    mailboxes: Mailboxes
    sparse_cores: SparseCores
    barna_cores: BarnaCores
    meeting: Meeting[Any, Any]
    others: OtherDevices | None = None
    rounds: RepeatedRounds | None = None  # of the top-level program's loops; None: all are executed


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreParts:
    """Parts that all programs of one core share."""

    device: DeviceParts
    number: int  # index of the core within its device; programs split their grid by it
    named_words: Mapping[str, int]  # words of scalar memory that a comment names
    model: MachineModel
    memory: Memory
    iterations: IterationBudget  # budget of loop iterations of all its programs
    parameter: Callable[[int], int]  # gives the address of one of the whole program's parameters
    call: Callable[[int, str, Passed], Progress]  # starts a called program; (time, name, registers) → its progress
    # Begins another round of a loop of calls; (loop, time, registers) → registers. None: changes none.
    next_round: Callable[[int, int, tuple[Any, ...]], tuple[Any, ...]] | None = None
    running: list[Any] = field(default_factory=list)  # sequencers of its programs, each called by the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One execution of a program."""

    translation: Translation
    mxus: Mxus
    timer: LoopTimer
    passed: Mapping[str, int | Unknown]  # the caller's registers
    assumption: Assumption | None = None  # values assumed for unknown ones that the program computes; None: none are
