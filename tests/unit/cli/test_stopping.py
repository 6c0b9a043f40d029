"""Ctrl-C between and within searches: what is finished is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from systolic.cli.stopping import until_stopped
from systolic.timing.runner import Stopped


def ends(result: str) -> Callable[[], str]:
    return lambda: result


def stops(error: BaseException) -> Callable[[], str]:
    def job() -> str:
        raise error

    return job


def test_finished_jobs_and_what_the_last_one_had() -> None:
    assert until_stopped([ends("a"), ends("b")]) == (["a", "b"], False)
    assert until_stopped([ends("a"), stops(Stopped("half")), ends("b")]) == (["a", "half"], True)
    assert until_stopped([ends("a"), stops(KeyboardInterrupt()), ends("b")]) == (["a"], True)
    with pytest.raises(KeyboardInterrupt):
        until_stopped([stops(KeyboardInterrupt()), ends("b")])
    with pytest.raises(ValueError, match="no"):
        until_stopped([stops(ValueError("no"))])
