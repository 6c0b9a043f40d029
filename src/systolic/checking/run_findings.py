"""Findings from runs in interpret mode on equal inputs: races, leftovers, and results that depend on conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from systolic.analysis import KernelCall
from systolic.checking.access import Access
from systolic.checking.comparing import is_nan, place
from systolic.checking.exception_findings import about, buffer_name, no_barrier, semaphore_name
from systolic.checking.finding import Finding
from systolic.checking.interpreting import Conditions, Interpreted, Race, words
from systolic.checking.watching import first_difference

_MEMORIES = {"nan": "NaN and the largest integers", "zero": "zeros", "large": "large finite numbers"}
_WAIT = "wait for the copy before its buffer is used, or give the next copy another buffer"
_PIPELINE = "by Pallas' own copy of a block"


def run_findings(calls: Sequence[KernelCall], results: Sequence[tuple[Conditions, Interpreted]]) -> Iterator[Finding]:
    """Find races, semaphores left with a count, and results that depend on the conditions; all inputs are equal."""
    early = next((result.watch.entering.early for _, result in results if result.watch.entering.early), [])
    if early:
        yield no_barrier(calls, early[0])
    races = dict.fromkeys(race for _, result in results for race in result.races)
    dependent = list(_dependent(calls, results))
    # Subcores that both do all the work write the same numbers to the same place, as in JAX's guide.
    alike = not dependent and results[0][1].on_subcores
    independent = not dependent and _both_ways(results)
    seen = set()
    for race in races:
        key = (frozenset(race.accesses), race.buffer)
        if key not in seen:
            seen.add(key)
            kinds = {kind for kind, _ in race.accesses}
            if alike and kinds == {"write"}:
                yield _written_twice(calls, race)
            elif independent and race.with_copy and kinds == {"read", "write"}:
                yield _read_in_vain(calls, race)
            else:
                yield _race(calls, race)
    if not races and any(result.raced for _, result in results):
        yield _race(calls, None)
    if left := next((result for _, result in results if result.semaphore_left), None):
        last = left.signalled
        of = f"; the last that signals it is this line{last.at_step}" if last.where else ""
        yield about(
            calls,
            "semaphore",
            value=f"{semaphore_name(calls, last.number)} holds {left.semaphore_left:,} when the kernel ends" + of,
            limit="it has to end at zero: a copy was started and not waited for, and may come too late",
            fix="wait for every copy that is started",
            where=last.where,
        )
    yield from dependent
    yield from _left_in_scratch(calls, results)


def _left_in_scratch(
    calls: Sequence[KernelCall], results: Sequence[tuple[Conditions, Interpreted]]
) -> Iterator[Finding]:
    """Warn of scratch memory whose contents pass from one block of the output to the next."""
    base = results[0][1]
    for _, result in (result for result in results if result[0].spoiled):
        for at, (output, other) in enumerate(zip(base.outputs, result.outputs, strict=True)):
            differs = _differs(output, other)
            if differs.any():
                yield about(
                    calls,
                    "uninitialised",
                    "warning",
                    value=f"{_output(at, base)}{place(differs)} depend on what scratch memory held when another "
                    "block of the output ended",
                    limit="that is right if a value is carried on, as in a prefix sum; a sum that is not "
                    "cleared for each block of the output is wrong, and no other rule finds it",
                    fix="clear the accumulator at the first step of each block of the output, or pass a reference",
                )
                return


def _both_ways(results: Sequence[tuple[Conditions, Interpreted]]) -> bool:
    """True if copies came early in one run and late in another, and no unwritten memory reached a result."""
    both = {conditions.copies for conditions, _ in results} == {"eager", "on_wait"}
    return both and not any(result.has_nan for _, result in results)


def _race(calls: Sequence[KernelCall], race: Race | None) -> Finding:
    return about(
        calls,
        "race",
        value="the race detector found one" if race is None else _accesses(calls, race),
        limit="one of them writes: what is read depends on which comes first",
        fix=_WAIT,
        where="" if race is None else _line(race),
    )


def _read_in_vain(calls: Sequence[KernelCall], race: Race) -> Finding:
    return about(
        calls,
        "race",
        "warning",
        value=_accesses(calls, race) + "; no result depended on it, with copies done early or late",
        limit="what is read depends on which comes first, and must not reach a result: rows that are masked, or not "
        "stored",
        fix="if it is meant so, leave it; otherwise " + _WAIT,
        where=_line(race),
    )


def _accesses(calls: Sequence[KernelCall], race: Race) -> str:
    name = buffer_name(calls, race.buffer) or f"a buffer in {race.memory}"
    first, second = (f"a {kind} {f'at {at}' if at else _PIPELINE}" for kind, at in race.accesses)
    return f"{name}: {first}, and {second}, are in no order"


def _line(race: Race) -> str:
    return next((at for _, at in race.accesses if at), "")


def _written_twice(calls: Sequence[KernelCall], race: Race) -> Finding:
    return about(
        calls,
        "race",
        "warning",
        value=f"several subcores write one place in {race.memory}, in no order, and wrote the same in all runs",
        limit="the work is done twice, or one of the results is lost",
        fix="share the work among all axes of the mesh: core_axis_name=(core, subcore), or the index of both",
        where=_line(race),
    )


def _dependent(calls: Sequence[KernelCall], results: Sequence[tuple[Conditions, Interpreted]]) -> Iterator[Finding]:
    base, first = results[0]
    reported = set()
    for conditions, result in results[1:]:
        if conditions.spoiled:
            continue  # this may be intended: see `_left_in_scratch`
        for at, (output, other) in enumerate(zip(first.outputs, result.outputs, strict=True)):
            differs = _differs(output, other)
            if conditions.memory != base.memory:
                differs &= ~(is_nan(output) | is_nan(other))  # NaN is reported as such
            rule = "order" if conditions.memory == base.memory else "uninitialised"
            if not differs.any() or reported & {"order", rule}:
                continue
            reported.add(rule)
            by_order = rule == "order"
            read = first_difference(first.watch, result.watch) if by_order else None
            yield about(
                calls,
                rule,
                value=f"{_output(at, first)}two runs on the same inputs differ in {place(differs)}: "
                + (
                    f"with copies {words(base)} and copies {words(conditions)}" + _first(calls, read)
                    if by_order
                    else f"with {_MEMORIES[base.memory]} and with {_MEMORIES[conditions.memory]} in memory that "
                    "nobody wrote"
                ),
                limit="a result must not depend on the order of copies and of parallel steps"
                if by_order
                else "memory may hold anything at the start",
                fix="look for a missing wait, or a parallel axis whose steps share something"
                if by_order
                else "clear the accumulator at its first step, and mask the ends of blocks that are not full",
                where=read.where if read is not None else "",
            )


def _first(calls: Sequence[KernelCall], read: Access | None) -> str:
    if read is None or read.number is None:
        return ""
    return f"; the first read that differs is of {buffer_name(calls, read.number) or 'a buffer'}{read.at_step}"


def _output(at: int, result: Interpreted) -> str:
    return f"result {at}: " if len(result.outputs) > 1 else ""


def _differs(output: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (output != other) & ~(is_nan(output) & is_nan(other))
