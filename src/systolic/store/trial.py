"""One trial: a product, or a function, on a chip with one configuration, and its outcome."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from systolic.accuracy.time_error import ProgramTraits, machine_digest
from systolic.chips import chip
from systolic.kernels import KERNEL_VERSION
from systolic.ops.op import kept_as, leaves
from systolic.schedule import KernelConfig
from systolic.store.function import FunctionConfig
from systolic.support.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything on which a kernel's time depends, except its configuration.

    Attributes:
      op: name of the kind of product; "function" for a user's function.
      spec: what the kernel, or XLA, computes.
      kernel_version: `kernels.KERNEL_VERSION`.
      jax, libtpu: versions of the compilers.
      constants: `machine_digest` of the simulator's constants of the chip, on which simulated times rest.
    """

    op: str
    spec: Any
    chip: str
    kernel_version: int
    jax: str
    libtpu: str
    constants: str

    @classmethod
    def here(cls, spec: Any, chip_name: str) -> Subject:
        """Return the subject with the versions that are installed here, and the constants of the simulator here."""
        jax, libtpu = _versions()
        op = kept_as(spec)
        return cls(
            op=op.name,
            spec=op.described(spec),
            chip=chip_name,
            kernel_version=KERNEL_VERSION,
            jax=jax,
            libtpu=libtpu,
            constants=machine_digest(chip(chip_name).machine),
        )

    @property
    def key(self) -> str:
        """A text that is the same for equal subjects, in any process."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()[:32]

    def as_json(self) -> str:
        """Return JSON text, sorted so that equal subjects have the same text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def differences(self, other: Subject) -> list[str]:
        """List the differences in words; nothing for equal subjects."""
        mine, others = leaves(dataclasses.asdict(self)), leaves(dataclasses.asdict(other))
        return [
            f"{name}: {others.get(name)} in place of {mine.get(name)}"
            for name in sorted({*mine, *others})
            if mine.get(name) != others.get(name)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A configuration, or XLA's program, and its time. None is not known."""

    config: KernelConfig | None  # None is XLA's own program, or a function
    status: Status
    modelled_us: float | None = None  # by the planner's arithmetic, before the trial
    # Compiled by the TPU compiler and executed on the chip's model; XLA's without its copy before the call.
    simulated_us: float | None = None
    prefetch_us: float | None = None  # the copy that XLA starts before the call
    # Compiler flags of XLA's program in addition to its defaults: it is raced without and with them.
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    measured_us: float | None = None  # a device's
    stalls: dict[str, float] = dataclasses.field(default_factory=dict)  # share of the time by cause
    vmem_bytes: int | None = None  # as the compiler used
    hbm_bytes: int | None = None
    bundles: int | None = None
    compile_s: float | None = None  # seconds of the compiler, when it first compiled the program
    reason: str = ""  # of a refusal or a failure, in the compiler's words
    function: FunctionConfig | None = None  # the static arguments of a user's function; None: it is a product
    # Properties of a function's program that decide how far its time may be off; a product's follow from its spec.
    traits: ProgramTraits | None = None

    @property
    def tried(self) -> KernelConfig | FunctionConfig | None:
        """The configuration, or the static arguments; None: XLA's own program."""
        return self.function or self.config

    @property
    def time_us(self) -> float | None:
        """The measured time, or else the simulated one."""
        return self.measured_us if self.measured_us is not None else self.simulated_us

    @property
    def limit(self) -> str:
        """The main cause of waiting, in words; the matrix units if there is little."""
        waits = {cause: share for cause, share in self.stalls.items() if share > _MINOR_SHARE and cause != "matrix"}
        if not waits:
            return "matrix units"
        return _WAITS.get(max(waits, key=waits.__getitem__), max(waits, key=waits.__getitem__))

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def best_first(trials: Iterable[Trial]) -> list[Trial]:
    """Sort trials: measured times first, then simulated ones, each fastest first, then the others."""

    def order(trial: Trial) -> tuple[bool, bool, float, str]:
        return trial.measured_us is None, trial.time_us is None, trial.time_us or 0.0, str(trial.tried)

    return sorted(trials, key=order)


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """Return the first trial with a time, in the order of `best_first`; None: none has one."""
    return next((trial for trial in trials if trial.time_us is not None), None)


_MINOR_SHARE = 0.1
_WAITS = {"copy": "copies", "overhead": "starting copies", "semaphore": "the other core"}


@functools.cache
def _versions() -> tuple[str, str]:
    result = []
    for package in ("jax", "libtpu"):
        try:
            result.append(metadata.version(package))
        except metadata.PackageNotFoundError:
            result.append("")
    return result[0], result[1]
