"""Accesses that are compared at once: the race detector finds what it finds when it compares one by one."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import vector_clock
from jax._src.pallas.mosaic.interpret.race_detection_state import RaceDetectionState

from systolic.compat import accesses_compared_at_once, interpreter_reports


def clock(times: np.ndarray) -> Any:
    if not hasattr(vector_clock, "NpVectorClock"):  # jax 0.10
        return times
    made: Any = getattr(vector_clock, "NpVectorClock")(len(times))  # noqa: B009 -- another version's
    made.clock[:] = times
    return made


def reports(seed: int, *, at_once: bool) -> list[str]:
    """Let two cores and a copy access rows of a buffer; now and then one of them hears of all accesses before."""
    random = np.random.default_rng(seed)
    parameters = inspect.signature(RaceDetectionState).parameters
    options: dict[str, Any] = {"num_cores": 2} if "num_cores" in parameters else {"on_race": "warn"}
    state: Any = RaceDetectionState(**options)
    two_numbers = "device_id" in inspect.signature(RaceDetectionState.check_read).parameters
    times = np.zeros((3, 3), np.int32)
    with accesses_compared_at_once() if at_once else nullcontext(), interpreter_reports() as text:
        for _ in range(60):
            core, row = random.integers(3), int(random.integers(12))
            if random.random() < 0.7:
                times[core] = times.max(0)
            times[core, core] += 1
            check = state.check_write if random.random() < 0.4 else state.check_read
            accessor = (int(core), 0) if two_numbers else ((int(core), 0),)
            check(*accessor, clock(times[core].copy()), ("vmem", 1, 0, 0), (slice(row, row + 2, 1),))
    assert state.races_found == ("RACE DETECTED" in text.getvalue())
    return [line for line in text.getvalue().splitlines() if "clock" not in line]  # jax 0.12 shows their addresses


@pytest.mark.parametrize("seed", range(8))
def test_races_are_reported_as_one_by_one(seed: int) -> None:
    assert reports(seed, at_once=True) == reports(seed, at_once=False)


def test_some_programs_race_and_some_do_not() -> None:
    assert {bool(reports(seed, at_once=True)) for seed in range(40)} == {True, False}
