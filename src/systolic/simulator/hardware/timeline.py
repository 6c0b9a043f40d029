"""A timeline: spans of copies, stalls, matrix work, rounds and operations, up to the number that was requested.

A program of a quarter of a million steps has a million spans, nearly all alike. The first and the last of each kind are
kept: there a pipeline fills and drains.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

from systolic.support.ranges import Amount, Count

SpanKind = Literal["op", "round", "copy", "matrix", "stall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of one core's activity. Cycles count from the program's start.

    `copy`: from the moment its bytes begin to cross until it has landed; `amount` is bytes, `label` "hbm → vmem".
    `stall`: `label` names what the core waited for. `matrix`: straight code; `amount` is the cycles in which its MXUs
    were busy. `round`: one iteration of an operation's outermost loop. `op`: an operation of the program.
    """

    kind: SpanKind
    begin_cycles: Amount
    end_cycles: Amount
    label: str
    amount: Count

    def check_saved(self) -> None:
        """Raise `ValueError` for a saved span that ends before it begins."""
        if self.end_cycles < self.begin_cycles:
            raise ValueError(f"end_cycles={self.end_cycles:g} is before begin_cycles={self.begin_cycles:g}")


class Timeline:
    """Collects the spans of one core, `limit` of each kind from its beginning and the same number from its end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first: dict[str, list[tuple[float, float, str, int]]] = {kind: [] for kind in get_args(SpanKind)}
        self._last: dict[str, deque[tuple[float, float, str, int]]] = {
            kind: deque(maxlen=limit) for kind in get_args(SpanKind)
        }
        self._counts = dict.fromkeys(get_args(SpanKind), 0)

    def add(self, kind: SpanKind, begin: float, end: float, label: str, amount: int = 0) -> None:
        """Keep a span, or drop one in the middle."""
        self._counts[kind] += 1
        first = self._first[kind]
        if len(first) < self._limit:
            first.append((begin, end, label, amount))
        else:
            self._last[kind].append((begin, end, label, amount))

    def repeat(self, time: int, other: Timeline) -> None:
        """Add the spans of another timeline of the same limit, shifted by a time."""
        for kind, count in other._counts.items():
            first, last = other._first[kind], other._last[kind]
            for begin, end, label, amount in (*first, *last):
                self.add(kind, time + begin, time + end, label, amount)
            self._counts[kind] += count - len(first) - len(last)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The kept spans, in order of their begin."""
        made = [
            Span(kind=kind, begin_cycles=begin, end_cycles=end, label=label, amount=amount)
            for kind in get_args(SpanKind)
            for begin, end, label, amount in (*self._first[kind], *self._last[kind])
        ]
        return tuple(sorted(made, key=lambda span: (span.begin_cycles, span.kind)))

    @property
    def left_out(self) -> int:
        """The number of dropped spans."""
        span_count = sum(len(self._first[kind]) + len(self._last[kind]) for kind in self._counts)
        return sum(self._counts.values()) - span_count
