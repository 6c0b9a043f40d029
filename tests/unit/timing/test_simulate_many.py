"""`simulate_many` without the compiler: order, progress, and calls that are none."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import systolic
import systolic.timing.runner
from systolic.compiler import CompilerRefusal
from systolic.timing import Measurement
from systolic.timing.many import CallError


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Future[Measurement]]:
    """The jobs that were sent, none of which has ended."""
    found: list[Future[Measurement]] = []

    def submit(*_: object, **__: object) -> Future[Measurement]:
        found.append(Future())
        if len(found) == 3:  # they end in another order than they were sent in
            found[2].set_result(Measurement(chip="v6e", provenance="simulated", time_us=2.0))
            found[0].set_result(Measurement(chip="v6e", provenance="simulated", time_us=0.5))
            found[1].set_exception(CompilerRefusal("too large", kind="vmem"))
        return found[-1]

    monkeypatch.setattr(systolic.timing.runner, "submit_simulation", submit)
    return found


def add(x: Any) -> Any:
    return x + 1


def test_outcomes_are_in_the_order_of_the_calls(sent: list[Future[Measurement]]) -> None:
    ended: list[str] = []
    outcomes = systolic.simulate_many(((add, (size,)) for size in (1, 2, 3)), chip="v6e", done=ended.append)
    assert len(sent) == 3
    assert [outcome.time_us for outcome in outcomes] == [0.5, None, 2.0]
    assert (outcomes[1].status, outcomes[1].reason) == ("refused", "too large")
    labels = [outcome.label for outcome in outcomes]
    assert sorted(ended) == sorted(labels)
    assert len(set(labels)) == 3


def test_no_calls_are_no_outcomes() -> None:
    assert systolic.simulate_many([]) == []


@pytest.mark.parametrize("call", [add, (add,), (add, np.zeros((2, 2))), ((), add), (add, (1,), (2,))])
def test_what_is_no_call(call: Any) -> None:
    with pytest.raises(CallError, match="call 2 is"):
        systolic.simulate_many([(add, (1,)), call])


def test_no_workers() -> None:
    with pytest.raises(ValueError, match="max_workers=0"):
        systolic.simulate_many([(add, (1,))], workers=0)
