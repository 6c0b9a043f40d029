from __future__ import annotations

import pytest

from systolic.simulator.repeated_calls import Outcome, RepeatedCalls


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lists for every call whether it was looked up."""
    lookups: list[bool] = []
    find = RepeatedCalls.find

    def noted(self: RepeatedCalls, *args: object) -> tuple[Outcome, ...] | None:
        outcomes = find(self, *args)  # type: ignore[arg-type]
        lookups.append(outcomes is not None)
        return outcomes

    monkeypatch.setattr(RepeatedCalls, "find", noted)
    return lookups
