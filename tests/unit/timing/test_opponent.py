"""The opponent: XLA with its default flags or with 64 MiB of scoped VMEM, whichever is faster."""

from __future__ import annotations

import pytest

from systolic.chips import chip, with_flags
from systolic.simulator import CoreRun, SimulatedRun
from systolic.timing import Measurement
from systolic.timing.experiment import Experiment
from systolic.timing.opponent import (
    MORE_VMEM_FLAGS,
    faster_xla,
    opponent_flags,
    xla_experiments,
    xla_repeated_us,
)
from systolic.timing.outcome import Outcome

V6E = chip("v6e")


def xla(time_us: float | None, *, prefetch_us: float = 0.0, flags: dict[str, str] | None = None) -> Outcome:
    if time_us is None:
        return Outcome(label="xla", status="refused", reason="no room")
    core = CoreRun(
        core=0,
        cycles=round(time_us * 1000),
        ops=(),
        copy_stall_cycles=0,
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=0,
        hbm_read_bytes=0,
        hbm_written_bytes=0,
        copies=0,
    )
    run = SimulatedRun(
        chip="v6e",
        clock_hz=1e9,
        cores=(core,),
        prefetch_cycles=round(prefetch_us * 1000),
        matrix_units=2,
        bundles=1,
        flags=flags or {},
    )
    timed = Measurement(chip="v6e", provenance="simulated", time_us=time_us, run=run, jax_version="", libtpu_version="")
    return Outcome(label="xla", measurement=timed)


def raced_flags(name: str, flags: dict[str, str] | None = None, **options: bool) -> list[dict[str, str]]:
    wanted = with_flags(chip(name), flags or {})
    experiments = xla_experiments(Experiment(fn=abs, args=(), chip=wanted, label="xla"), **options)
    return [experiment.chip.given_flags for experiment in experiments]


def test_xla_is_raced_with_its_defaults_and_with_more_vmem() -> None:
    assert raced_flags("v6e") == raced_flags("v5e") == raced_flags("v7x") == [{}, MORE_VMEM_FLAGS]


def test_a_limit_that_the_user_gives_holds() -> None:
    flags = {"xla_tpu_scoped_vmem_limit_kib": "32768"}
    assert raced_flags("v6e", flags) == [flags]


def test_default_flags_alone() -> None:
    assert raced_flags("v6e", default_flags_only=True) == [{}]


@pytest.mark.parametrize(
    ("default_us", "flagged_us", "index"),
    [(10.0, 9.0, 1), (9.0, 10.0, 0), (9.0, 9.0, 0), (None, 9.0, 1), (9.0, None, 0)],
)
def test_the_faster_counts(default_us: float | None, flagged_us: float | None, index: int) -> None:
    outcomes = [xla(default_us), xla(flagged_us, flags=MORE_VMEM_FLAGS)]
    opponent = faster_xla(outcomes, least_hbm_us=1.0)
    assert opponent is outcomes[index]
    assert opponent_flags(opponent, V6E) == (MORE_VMEM_FLAGS if index else {})


def test_a_refusal_with_both_is_the_refusal_of_the_defaults() -> None:
    outcomes = [xla(None), xla(None)]
    assert faster_xla(outcomes, least_hbm_us=1.0) is outcomes[0]


def test_a_copy_before_the_call_counts_as_far_as_hbm_has_no_time_for_it() -> None:
    early = xla(4.0, prefetch_us=5.0)
    assert xla_repeated_us(early, least_hbm_us=7.0) == 7.0
    assert faster_xla([early, plain := xla(6.0)], least_hbm_us=7.0) is plain
    assert faster_xla([early, plain], least_hbm_us=5.0) is early
    assert xla_repeated_us(plain, least_hbm_us=5.0) == 6.0
