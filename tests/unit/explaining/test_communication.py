"""Exposed communication as a limit, and what would hide it."""

from __future__ import annotations

import dataclasses

import pytest
from slices import BARRIER, GATHER, a_slice

from systolic.explaining.communication import communication_savings, communication_words, is_limit


def test_exposed_communication_limits_a_run() -> None:
    run = a_slice(exposed_us=12.0)  # and 2 µs of the barrier, of 80
    assert is_limit(run)
    assert GATHER in communication_words(run)
    assert not is_limit(a_slice(exposed_us=5.0))
    assert "limited" not in communication_words(a_slice(exposed_us=5.0))
    assert communication_words(dataclasses.replace(run, collectives=())) == ""


def test_a_saving_is_at_most_what_is_exposed() -> None:
    gather, barrier = communication_savings(a_slice(), tried_meshes=False)
    assert gather.title.startswith(GATHER)
    assert (gather.saving, gather.time_us) == (pytest.approx(0.15), pytest.approx(68.0))
    assert gather.provenance == "modelled"  # nobody has simulated it hidden
    assert barrier.title.startswith(BARRIER)
    assert [each.title for each in communication_savings(a_slice(exposed_us=1.0), tried_meshes=False)] == [
        barrier.title
    ]


def test_what_would_hide_it_depends_on_what_bounds_it() -> None:
    run = a_slice()
    gather = next(each for each in run.collectives if each.name == GATHER)

    def change(**fields: object) -> str:
        other = dataclasses.replace(gather, **fields)
        (saving,) = communication_savings(dataclasses.replace(run, collectives=(other,)), tried_meshes=False)
        return saving.change

    short = change(sent_bytes=1000)  # 40 µs for a kilobyte
    partly = change(sent_bytes=3_000_000)  # one link of 100 GB/s takes 30 µs
    wholly = change(sent_bytes=3_000_000, exposed_cycles=gather.cycles)
    busy = dataclasses.replace(run.links[0], busy_cycles=run.cycles)
    run = dataclasses.replace(run, links=(busy, *run.links[1:]))
    full = change(sent_bytes=1000)
    assert len({short, partly, wholly, full}) == 4
    assert "0 → 2 (y+)" in full
    for change_of in (wholly, full):
        assert "--try-mesh" in change_of
    (saving,) = communication_savings(dataclasses.replace(run, collectives=(gather,)), tried_meshes=True)
    assert "--try-mesh" not in saving.change
