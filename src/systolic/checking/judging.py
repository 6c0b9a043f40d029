"""Findings from the values that runs in interpret mode return."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from systolic.analysis import KernelCall, op_count
from systolic.checking.access import Access
from systolic.checking.comparing import Comparison, Reference, compared, is_nan, place
from systolic.checking.exception_findings import about
from systolic.checking.finding import Finding, Grade
from systolic.checking.guessing import Guesser
from systolic.checking.interpreting import Conditions, Interpreted
from systolic.checking.rounding import has_narrow, most_sums, sums
from systolic.checking.rules.sums import sums_narrowly
from systolic.checking.unreferenced import Unreferenced
from systolic.compiler import written_at


@dataclass(slots=True)
class Judge:
    """Turns results of runs into findings.

    Attributes:
      calls: the Pallas calls that were run.
      assumed: True if values were drawn that a kernel's blocks may depend on: its results mean little then.
      worst: error and tolerance where they are farthest apart, in all comparisons so far; None: there was none.
      lost: the largest number of elements of one comparison that are NaN or infinite, but should not be.
    """

    calls: Sequence[KernelCall]
    assumed: bool = False
    worst: tuple[float, float] | None = None
    lost: int = 0
    _terms: int = field(init=False)
    _roundings: int = field(init=False)
    _made: bool = False  # arithmetic has produced NaN from some inputs before
    _rounds: bool = field(init=False)  # something could be rounded to a narrow type

    def __post_init__(self) -> None:
        call_sums = [sums(call) for call in self.calls]
        self._terms = max(1, sum(terms for terms, _ in call_sums))
        self._roundings = max(1, sum(roundings for _, roundings in call_sums))
        self._rounds = not self.calls or any(map(has_narrow, self.calls))

    def of_values(
        self,
        inputs: Sequence[np.ndarray],
        results: Sequence[tuple[Conditions, Interpreted]],
        expected: Reference | None,
        data: str = "",
    ) -> Iterator[Finding]:
        """Find NaN, wrong numbers, and numbers that are less exact than they could be.

        Args:
          inputs: the flat inputs of all results.
          results: the first is judged; results with other memory contents tell where its NaN comes from.
          expected: the reference's results.
          data: the kind of inputs, in words; "" for normal ones.
        """
        base, outputs = results[0][0], results[0][1].outputs
        clean = not any(is_nan(array).any() for array in inputs)
        if not data:
            yield from self._other_results(outputs, expected)
        if expected is not None and [output.shape for output in outputs] != [value.shape for value in expected.values]:
            expected = None
        others = [other.outputs for conditions, other in results[1:] if conditions.memory != base.memory]
        for at, got in enumerate(outputs):
            right = None if expected is None else expected.values[at]
            empty = is_nan(got) & ~(np.zeros(got.shape, bool) if right is None else is_nan(right))
            name = (f"result {at}: " if len(outputs) > 1 else "") + (f"of {data}: " if data else "")
            # NaN that does not depend on memory contents comes from arithmetic.
            made = (
                empty & np.all([is_nan(outputs_of_run[at]) for outputs_of_run in others], axis=0)
                if others
                else np.zeros_like(empty)
            )
            if (empty & ~made).any() and (clean or right is not None):
                back = results[0][1].watch.windows.came_back
                yield self._nan(name, empty & ~made) if back is None else self._came_back(name, back)
            if made.any() and right is None and clean and not (data and self._made):
                yield self._arithmetic(name, made, "error" if data else "warning")
            self._made |= bool(made.any())
            if right is not None and expected is not None:
                terms, roundings = (self._terms, self._roundings) if self.calls else most_sums((*inputs, got))
                native = expected.native[at] if expected.native else None
                response = expected.responses[at]
                comparison = compared(got, right, response, terms=terms, roundings=roundings, native=native)
                if data and not expected.steady[at]:  # only results that are not finite are wrong under any rounding
                    comparison = replace(
                        comparison, error=np.where(np.isfinite(comparison.error), 0.0, comparison.error)
                    )
                yield from self._wrong(name, comparison, empty & ~made)

    def _other_results(self, outputs: Sequence[np.ndarray], expected: Reference | None) -> Iterator[Finding]:
        """Find references that return other shapes, or round."""
        if expected is not None and [output.shape for output in outputs] != [value.shape for value in expected.values]:
            shapes = [", ".join(str(array.shape) for array in arrays) for arrays in (outputs, expected.values)]
            yield about(
                self.calls,
                "reference",
                value=f"the function returns {shapes[0]}, the reference {shapes[1]}",
                limit="results were not compared",
                fix="make the reference return arrays of the same shapes, in the same order",
            )
            return
        coarse = sorted({value.dtype.name for value in (expected.values if expected else ()) if _is_coarse(value)})
        if coarse:
            yield about(
                self.calls,
                "reference",
                "note",
                value=f"the reference returns {', '.join(coarse)}, though it is given float64",
                limit="results are compared at that precision only",
                fix="leave conversions out of the reference",
            )

    def _nan(self, name: str, empty: np.ndarray) -> Finding:
        everywhere = empty.mean() > 0.999
        return about(
            self.calls,
            "nan",
            grade="note" if self.assumed else "error",
            value=f"{name}NaN, which no input has, in {place(empty)}",
            limit="unwritten memory was used: interpret mode fills it with NaN; on a TPU it may hold anything"
            if everywhere
            else "it was never written, or was computed from garbage past the end of a block",
            fix="clear the accumulator at its first step, and mask ends along k"
            if everywhere
            else "make the grid reach the end (pl.cdiv), and mask the ends of what is summed over",
        )

    def _came_back(self, name: str, back: Access) -> Finding:
        return about(
            self.calls,
            "revisited-output",
            grade="note" if self.assumed else "error",
            value=f"{name}NaN: a pipeline in the kernel comes back to a block of its output after others, and reads "
            "what its window holds then",
            limit="all steps that write one output block must follow each other: a block that comes back is not read "
            "in again, so its earlier sums are lost",
            fix="put the axis that is summed over last in the pipeline's grid",
            where=back.where,
        )

    def _arithmetic(self, name: str, made: np.ndarray, grade: Grade) -> Finding:
        return about(
            self.calls,
            "nan",
            grade="note" if self.assumed else grade,
            value=f"{name}NaN, which no input has, in {place(made)}, whatever memory holds",
            limit="arithmetic produces it: infinity minus infinity, zero times infinity, a root of a negative number",
            fix="subtract the maximum before exp, and keep divisors away from zero; or pass a reference",
        )

    def _wrong(self, name: str, comparison: Comparison, empty: np.ndarray) -> Iterator[Finding]:
        worst = comparison.worst
        if worst is None:
            return
        if self.worst is None or _ratio(worst) > _ratio(self.worst):
            self.worst = worst
        self.lost = max(self.lost, comparison.lost)
        wrong = (comparison.error > comparison.tolerance) & ~empty  # reported as NaN from memory
        if not wrong.any():
            return
        coarse = self._rounds and not (comparison.error > comparison.coarse)[~empty].any()
        if not coarse and not (comparison.error > comparison.limit)[~empty].any():
            yield self._unlikely(name, worst, comparison)
            return
        # Not at an element near zero, where the result's dtype is finer.
        largest = float(comparison.error[~empty].max()), float(comparison.tolerance[~empty].max())
        gross = coarse and _ratio(largest) >= _GROSS and any(map(sums_narrowly, self.calls))
        grade: Grade = "note" if self.assumed else "warning" if coarse and not gross else "error"
        off = f"are off, at worst by {worst[0]:.3g} where rounding explains {worst[1]:.3g}"
        if lost := int((wrong & ~np.isfinite(comparison.error)).sum()):
            off = (
                "are NaN or infinite, and should not be"
                if lost == wrong.sum()
                else f"{off}, and {lost:,} NaN or infinite"
            )
        yield about(
            self.calls,
            "precision" if coarse else "wrong-result",
            grade=grade,
            value=f"{name}{place(wrong)} {off}",
            limit="as if sums or intermediates were rounded to bfloat16, or to the result's type, on the way"
            if coarse
            else "no rounding explains that: it is wrong by the reference in float64",
            fix="keep the running sum in float32 (a scratch accumulator), and round once at the end"
            if coarse
            else "look at where: an end, some blocks or everything; tails, index maps and masks come first",
        )

    def _unlikely(self, name: str, worst: tuple[float, float], comparison: Comparison) -> Finding:
        wrong = comparison.error > comparison.tolerance
        return about(
            self.calls,
            "precision",
            grade="note",
            value=f"{name}{place(wrong)} are off by {worst[0]:.3g} where rounding in a usual order explains "
            f"{worst[1]:.3g}",
            limit=f"the worst order of the sum explains {float(comparison.limit[wrong].min()):.3g} and more",
            fix="nothing, if the kernel sums one term after the other; sums of blocks are more exact",
        )

    @property
    def unreferenced(self) -> Unreferenced:
        """The judge of results without a reference."""
        guesser = Guesser(terms=self._terms, roundings=self._roundings, rounds=self._rounds)
        return Unreferenced(calls=self.calls, assumed=self.assumed, guesser=guesser)

    def of_precision(self) -> Iterator[Finding]:
        """Note where interpret mode is more exact than a TPU."""
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


# Factor over its tolerance from which the error of a sum in a narrow type is more than a lost digit.
_GROSS = 100.0


def _is_coarse(array: np.ndarray) -> bool:
    """True if an array holds floats of fewer than 64 bits; NumPy does not take bfloat16 for a number."""
    return array.dtype.kind in "fV" and array.dtype.itemsize < 8


def _ratio(error_and_tolerance: tuple[float, float]) -> float:
    error, tolerance = error_and_tolerance
    return 0.0 if error == 0 else math.inf if tolerance == 0 else error / tolerance
