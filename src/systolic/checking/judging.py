"""Findings from the results of runs in interpret mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.analysis import KernelCall, op_count
from systolic.checking.comparing import Comparison, Reference, compared, place
from systolic.checking.exception_findings import about, buffer_name, run_failure
from systolic.checking.finding import Finding
from systolic.checking.interpreting import Conditions, Interpreted, Race, words
from systolic.compiler import written_at
from systolic.schedule import LANES


@dataclass(slots=True)
class Judge:
    """Makes findings of runs.

    Attributes:
      calls: the Pallas calls that were run.
      assumed: whether values were made up that a kernel's blocks may depend on: its results mean little then.
      worst: error and tolerance where they are farthest apart, of all comparisons so far; None: there was none.
    """

    calls: Sequence[KernelCall]
    assumed: bool = False
    worst: tuple[float, float] | None = None
    _terms: int = field(init=False)
    _roundings: int = field(init=False)

    def __post_init__(self) -> None:
        found = [_sums(call) for call in self.calls]
        self._terms = max(1, sum(terms for terms, _ in found))
        self._roundings = max(1, sum(roundings for _, roundings in found))

    def of_error(self, error: Exception, conditions: Conditions) -> Finding:
        """Reports a run that ended in an exception."""
        return run_failure(error, self.calls, f"copies {words(conditions)}")

    def of_runs(self, results: Sequence[tuple[Conditions, Interpreted]]) -> Iterator[Finding]:
        """Finds races, semaphores left with a count, and results that depend on the conditions. Inputs are equal."""
        races = dict.fromkeys(race for _, result in results for race in result.races)
        seen = set()
        for race in races:
            key = (frozenset(race.accesses), race.buffer)
            if key not in seen:
                seen.add(key)
                yield self._race(race)
        if not races and any(result.raced for _, result in results):
            yield self._race(None)
        if left := next((result.semaphore_left for _, result in results if result.semaphore_left), 0):
            yield about(
                self.calls,
                "semaphore",
                value=f"a semaphore holds {left:,} when the kernel ends",
                limit="it has to end at zero: a copy was started and not waited for, and may come too late",
                fix="wait for every copy that is started",
            )
        yield from self._dependent(results)

    def _race(self, race: Race | None) -> Finding:
        if race is None:
            value, where = "the race detector found one", ""
        else:
            name = buffer_name(self.calls, race.buffer) or f"a buffer in {race.memory}"
            first, second = (f"a {kind} {f'at {at}' if at else _PIPELINE}" for kind, at in race.accesses)
            value = f"{name}: {first}, and {second}, are in no order"
            where = next((at for _, at in race.accesses if at), "")
        return about(
            self.calls,
            "race",
            value=value,
            limit="one of them writes: what is read depends on which comes first",
            fix="wait for the copy before its buffer is used, or give the next copy another buffer",
            where=where,
        )

    def _dependent(self, results: Sequence[tuple[Conditions, Interpreted]]) -> Iterator[Finding]:
        base, first = results[0]
        said = set()
        for conditions, result in results[1:]:
            for at, (one, other) in enumerate(zip(first.outputs, result.outputs, strict=True)):
                differs = _differs(one, other)
                if conditions.memory != base.memory:
                    differs &= ~(_is_nan(one) | _is_nan(other))  # NaN is reported as such
                rule = "order" if conditions.memory == base.memory else "uninitialised"
                if not differs.any() or said & {"order", rule}:
                    continue
                said.add(rule)
                by_order = rule == "order"
                yield about(
                    self.calls,
                    rule,
                    value=f"{_output(at, first)}two runs on the same inputs differ in {place(differs)}: "
                    + (
                        f"with copies {words(base)} and copies {words(conditions)}"
                        if by_order
                        else "with the largest integers and with zeros in memory that nobody wrote"
                    ),
                    limit="a result must not depend on the order of copies and of parallel steps"
                    if by_order
                    else "what is in memory at the start is anything",
                    fix="look for a missing wait, or a parallel axis whose steps share something"
                    if by_order
                    else "clear the accumulator at its first step, and mask the ends of blocks that are not full",
                )

    def of_values(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], wanted: Reference | None
    ) -> Iterator[Finding]:
        """Finds NaN, wrong numbers, and numbers that are less exact than they could be."""
        clean = not any(_is_nan(each).any() for each in inputs)
        if wanted is not None and [each.shape for each in outputs] != [each.shape for each in wanted.values]:
            shapes = [", ".join(str(each.shape) for each in some) for some in (outputs, wanted.values)]
            yield about(
                self.calls,
                "reference",
                value=f"the function returns {shapes[0]}, the reference {shapes[1]}",
                limit="results are compared with nothing",
                fix="make the reference return arrays of the same shapes, in the same order",
            )
            wanted = None
        coarse = sorted({each.dtype.name for each in (wanted.values if wanted else ()) if _is_coarse(each)})
        if coarse:
            yield about(
                self.calls,
                "reference",
                "note",
                value=f"the reference returns {', '.join(coarse)}, though it is given float64",
                limit="results are compared at that precision only",
                fix="leave conversions out of the reference",
            )
        for at, got in enumerate(outputs):
            right = None if wanted is None else wanted.values[at]
            empty = _is_nan(got) & ~(np.zeros(got.shape, bool) if right is None else _is_nan(right))
            name = f"result {at}: " if len(outputs) > 1 else ""
            if empty.any() and (clean or right is not None):
                yield self._nan(name, empty)
            if right is not None and wanted is not None:
                terms, roundings = (self._terms, self._roundings) if self.calls else _most_sums((*inputs, got))
                found = compared(got, right, wanted.responses[at], terms=terms, roundings=roundings)
                yield from self._wrong(name, found)

    def _nan(self, name: str, empty: np.ndarray) -> Finding:
        everywhere = empty.mean() > 0.999
        return about(
            self.calls,
            "nan",
            grade="note" if self.assumed else "error",
            value=f"{name}NaN, which no input has, in {place(empty)}",
            limit="memory that nobody wrote was used: interpret mode fills it with NaN, a TPU with anything"
            if everywhere
            else "what lies there was never written, or was made of the garbage behind the end of a block",
            fix="clear the accumulator at its first step, and mask ends along k"
            if everywhere
            else "make the grid reach the end (pl.cdiv), and mask the ends of what is summed over",
        )

    def _wrong(self, name: str, found: Comparison) -> Iterator[Finding]:
        worst = found.worst
        if worst is None:
            return
        if self.worst is None or _ratio(worst) > _ratio(self.worst):
            self.worst = worst
        wrong = found.error > found.tolerance  # false for NaN, which is reported as such
        if not wrong.any():
            return
        coarse = not (found.error > found.coarse).any()
        yield about(
            self.calls,
            "precision" if coarse else "wrong-result",
            grade="note" if self.assumed else "warning" if coarse else "error",
            value=f"{name}{place(wrong)} are off, at worst by {worst[0]:.3g} where rounding explains {worst[1]:.3g}",
            limit="as if sums or intermediates were rounded to bfloat16, or to the result's type, on the way"
            if coarse
            else "no rounding explains that: against the reference in float64 it is wrong",
            fix="keep the running sum in float32 (a scratch accumulator), and round once at the end"
            if coarse
            else "look at where: an end, some blocks or everything; tails, index maps and masks come first",
        )

    def of_precision(self) -> Iterator[Finding]:
        """Notes where interpret mode is more exact than a TPU."""
        for call in self.calls:
            dots = op_count(call.body).float32_dots
            if dots:
                yield Finding(
                    rule="precision",
                    grade="note",
                    value=f"{call.name}: this run multiplied float32 in full",
                    limit="at default precision a TPU rounds the operands to bfloat16 first: its errors are larger",
                    fix="precision=jax.lax.Precision.HIGHEST where that matters",
                    kernel=call.name,
                    where=written_at(dots[0]),
                )


_PIPELINE = "by Pallas' own copy of a block"


def _sums(call: KernelCall) -> tuple[int, int]:
    """Counts the terms that an element of an output sums, and how often a running sum may be rounded on the way."""
    count = op_count(call.body)
    cut = [operand for operand in call.of("input", "output") if operand.is_cut]
    parts = [[-(-size // block) for size, block in zip(each.shape, each.block, strict=True)] for each in cut]
    longest = max((size for each in call.of("input", "output") for size in each.shape), default=1)
    blocks = max((math.prod(each) for each, one in zip(parts, cut, strict=True) if one.role == "output"), default=1)
    if call.steps is None:
        visits = max((count for each in parts for count in each), default=1)
    else:
        visits = max(1, call.steps // blocks)
    terms, roundings = count.terms * visits, count.roundings * visits
    if count.terms == 1 or not count.is_counted:
        terms, roundings = max(terms, longest), max(roundings, longest // LANES)
    return terms, roundings


def _most_sums(arrays: Sequence[np.ndarray]) -> tuple[int, int]:
    """Supposes a sum over the longest axis where no call says more, as for a kernel on a mesh (`pl.kernel`)."""
    longest = max((size for each in arrays for size in each.shape), default=1)
    return longest, max(1, longest // LANES)


def _is_coarse(array: np.ndarray) -> bool:
    """Says whether an array holds floats of fewer than 64 bits; NumPy does not take bfloat16 for a number."""
    return array.dtype.kind in "fV" and array.dtype.itemsize < 8


def _output(at: int, result: Interpreted) -> str:
    return f"result {at}: " if len(result.outputs) > 1 else ""


def _is_nan(array: Any) -> np.ndarray:
    array = np.asarray(array)
    with np.errstate(invalid="ignore"):
        return array != array  # also of types that np.isnan does not take


def _differs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one != other) & ~(_is_nan(one) & _is_nan(other))


def _ratio(found: tuple[float, float]) -> float:
    error, tolerance = found
    return 0.0 if error == 0 else math.inf if tolerance == 0 else error / tolerance
