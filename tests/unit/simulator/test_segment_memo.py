from __future__ import annotations

from systolic.simulator.hardware.segment_memo import Relative, SegmentMemo

_IDLE: Relative = ((0.0,), ((),), ((),))


def _key(segment: int) -> tuple[str, int, tuple[bool, ...], Relative]:
    return "program", segment, (), _IDLE


def test_old_runs_are_forgotten() -> None:
    memo = SegmentMemo(max_new=4)
    for segment in range(100):
        memo.add(_key(segment), (segment, _IDLE, 0, 0))
        assert len(memo) <= 8
    assert memo.get(_key(0)) is None
    assert memo.get(_key(99)) == (99, _IDLE, 0, 0)


def test_a_run_that_is_asked_for_is_kept() -> None:
    memo = SegmentMemo(max_new=4)
    memo.add(_key(0), (7, _IDLE, 0, 0))
    for segment in range(1, 100):
        memo.add(_key(segment), (segment, _IDLE, 0, 0))
        assert memo.get(_key(0)) == (7, _IDLE, 0, 0)


def test_programs_are_told_apart() -> None:
    memo = SegmentMemo()
    memo.add(("one", 0, (), _IDLE), (1, _IDLE, 0, 0))
    assert memo.get(("another", 0, (), _IDLE)) is None
