"""Read subjects and trials from JSON that may be damaged or hostile: rows of a store, and imports."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from systolic.chips import (
    CHIPS,
    FlagError,
    SliceError,
    SliceShape,
    UnsupportedDtypeError,
    checked_flags,
    chip,
    known_chip,
)
from systolic.ops.op import kept_as, op_of, read_spec
from systolic.schedule import IllegalTilesError
from systolic.store.function import FUNCTIONS
from systolic.store.trial import Subject, Trial
from systolic.support.choices import unknown_name
from systolic.support.untrusted import UntrustedError, shown, structured

_VERSION = re.compile(r"[\w.+!-]{0,80}", re.ASCII)
# No kernel is twice as fast as its products or its copies alone: the model's constants are not that wrong.
_POSSIBLE = 0.5
_LONGEST_US = 1e12  # eleven days: no kernel of a size that a TPU counts takes as long


def read_subject(record: Any) -> Subject:
    """Return a subject from the values of `read_json`.

    Raises:
      UntrustedError: it is not a subject; its op, chip, slice or a dtype is unknown; a number is not a count; or a text
        does not have its form.
    """
    subject = structured(record, Subject)
    subject = dataclasses.replace(subject, spec=read_spec(subject.op, subject.spec))
    if known_chip(subject.chip) is None:
        raise UntrustedError(unknown_name("chip", subject.chip, CHIPS))
    if (mesh := kept_as(subject.spec).mesh(subject.spec)) is not None:
        try:
            SliceShape.parse(chip(subject.chip), mesh.topology)
        except SliceError as error:
            raise UntrustedError(str(error)) from error
    if subject.kernel_version < 0:
        raise UntrustedError(f"kernel_version={subject.kernel_version} is below 0")
    for name in ("jax", "libtpu", "constants"):
        if not _VERSION.fullmatch(getattr(subject, name)):
            raise UntrustedError(f"{name}={shown(getattr(subject, name))} is not of its form")
    return subject


def read_trial(record: Any, subject: Subject) -> Trial:
    """Return a trial of a subject from the values of `read_json`.

    Trials of other versions of the kernels, jax or libtpu, or of other constants of the simulator, are not used here,
    and obey rules that are not known here: their tiles and least times are not checked.

    Raises:
      UntrustedError: it is not a trial; or it has a time that is not above 0 or that no kernel can have, something
        below 0, a time although it failed, or tiles that break rules.
    """
    trial = structured(record, Trial)
    if (trial.function is not None) != (subject.op == FUNCTIONS.name) or None not in (
        trial.function,
        trial.config,
    ):
        raise UntrustedError("its configuration is of another kind than what it is of")
    for name in ("modelled_us", "simulated_us", "measured_us"):
        value = getattr(trial, name)
        if value is not None and value <= 0:
            raise UntrustedError(f"{name}={shown(value)} is not a time above 0")
        if value is not None and value >= _LONGEST_US:
            raise UntrustedError(f"{name}={shown(value)} is no time: it is {_LONGEST_US:g} µs or more")
    for name in ("prefetch_us", "vmem_bytes", "hbm_bytes", "bundles", "compile_s"):
        if (getattr(trial, name) or 0) < 0:
            raise UntrustedError(f"{name}={shown(getattr(trial, name))} is below 0")
    if trial.flags:
        _check_flags(trial)
    if min(trial.stalls.values(), default=0.0) < 0:
        raise UntrustedError(f"stalls={shown(trial.stalls)}: one is below 0")
    if trial.time_us is None:
        return trial
    if trial.status != "ok":
        raise UntrustedError(f"a trial that {trial.status} has a time, {trial.time_us:g} µs")
    if trial.config is not None and subject == Subject.here(subject.spec, subject.chip):
        _check_possible(trial, subject)
    return trial


def _check_flags(trial: Trial) -> None:
    if trial.tried is not None:
        raise UntrustedError(f"flags={shown(trial.flags)}: only XLA's program has flags of its own")
    try:
        checked_flags(trial.flags)
    except FlagError as error:
        raise UntrustedError(str(error)) from error


def _check_possible(trial: Trial, subject: Subject) -> None:
    assert trial.config is not None
    chip_model = chip(subject.chip)
    try:
        op = op_of(subject.spec)
        op.judge(subject.spec, trial.config, chip_model)
        least_us = _POSSIBLE * op.least_time_us(subject.spec, trial.config, chip_model)
    except (IllegalTilesError, UnsupportedDtypeError) as error:
        raise UntrustedError(str(error)) from error
    times = [time_us for time_us in (trial.simulated_us, trial.measured_us) if time_us is not None]
    if min(times) < least_us or math.isinf(least_us):
        raise UntrustedError(f"{min(times):g} µs is no time of {trial.config}, which takes {least_us:g} at the least")
