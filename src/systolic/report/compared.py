"""Two explanations, or two simulated runs, of the same thing: what changed from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from systolic.chips.time_error import RatioVerdict, TimeError, ratio_error_percent, ratio_verdict
from systolic.explaining import Explanation, OperandTraffic
from systolic.report.explained_tables import program, rate_tflops
from systolic.simulator import SimulatedRun, same_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One quantity before and after; None where one side has none.

    Attributes:
      group: "time", "waiting", "memory", "units", "traffic".
      unit: "µs", "cycles", "share", "bytes", "bundles", "Tflop/s".
    """

    group: str
    quantity: str
    unit: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """Relative: 0.1 is a tenth more. Of shares, the difference. None where it is not known."""
        if self.before is None or self.after is None:
            return None
        if self.unit == "share":
            return self.after - self.before
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed on one chip.

    Attributes:
      findings_gone: titles of findings that only the first has.
      findings_new: titles of findings that only the second has.
    """

    chip: str
    before: str  # the function's name
    after: str
    rows: tuple[ComparedRow, ...]
    findings_gone: tuple[str, ...] = ()
    findings_new: tuple[str, ...] = ()
    flags_before: Mapping[str, str] = field(default_factory=dict)  # that the first was compiled with
    flags_after: Mapping[str, str] = field(default_factory=dict)
    error_before: TimeError | None = None  # how far either simulated time may be off
    error_after: TimeError | None = None
    same_kernel: bool = False  # whether both take most of their time in Pallas kernels of one name

    @property
    def before_us(self) -> float:
        """The first's simulated time."""
        return self.rows[0].before or 0.0

    @property
    def after_us(self) -> float:
        """The second's simulated time."""
        return self.rows[0].after or 0.0

    @property
    def ratio_error_percent(self) -> float | None:
        """The error of the ratio of the two times; None: not known."""
        if self.error_before is None or self.error_after is None:
            return None
        return ratio_error_percent(self.error_before, self.error_after, same_kernel=self.same_kernel)

    @property
    def verdict(self) -> RatioVerdict:
        """Whether the second is faster than the first, by more than their times may be off."""
        return ratio_verdict(1 / (1 + self.slower), self.ratio_error_percent)

    @property
    def slower(self) -> float:
        """How much longer the second takes, relative to the first: 0.1 is a tenth longer."""
        return self.rows[0].change or 0.0


def compare_runs(before: SimulatedRun, after: SimulatedRun, *, names: tuple[str, str]) -> Comparison:
    """Compares time and waiting of two runs; `names` are those of their functions."""
    rows = (*_time_rows(before, after), *_waiting_rows(before, after))
    return Comparison(
        chip=after.chip,
        before=names[0],
        after=names[1],
        rows=rows,
        flags_before=before.flags,
        flags_after=after.flags,
        **_errors(before, after),
    )


def compare_explanations(before: Explanation, after: Explanation) -> Comparison:
    """Compares the numbers of two explanations, and lists the findings that went and came."""
    first, second = before.run, after.run
    xla = [program(each, "xla") for each in (before, after)]
    rows = [
        *_time_rows(first, second),
        _row("time", "rate", "Tflop/s", *(rate_tflops(each.programs[0]) for each in (before, after))),
        _row("time", "XLA", "µs", *(found.time_us if found else None for found in xla)),
        *_waiting_rows(first, second),
        *_fields(first, second, "units", "share", matrix_busy_share="matrix units busy", copy_busy_share="HBM busy"),
        *_units(first, second),
        *_fields(first, second, "memory", "bytes", hbm_read_bytes="HBM read", hbm_written_bytes="HBM written"),
        *_fields(first, second, "memory", "bytes", vmem_bytes="VMEM", spill_bytes="spilled registers"),
        *_fields(first, second, "memory", "bundles", bundles="code"),
        *_traffic(before.traffic, after.traffic),
    ]
    return Comparison(
        chip=after.chip,
        before=before.function,
        after=after.function,
        rows=tuple(row for row in rows if row.before is not None or row.after is not None),
        findings_gone=_only(before, after),
        findings_new=_only(after, before),
        flags_before=first.flags,
        flags_after=second.flags,
        **_errors(first, second),
    )


def _errors(before: SimulatedRun, after: SimulatedRun) -> dict[str, Any]:
    return {"error_before": before.error, "error_after": after.error, "same_kernel": same_kernel(before, after)}


def _row(group: str, quantity: str, unit: str, before: float | None, after: float | None) -> ComparedRow:
    return ComparedRow(group=group, quantity=quantity, unit=unit, before=before, after=after)


def _fields(
    before: SimulatedRun, after: SimulatedRun, group: str, unit: str, **quantities: str
) -> Iterable[ComparedRow]:
    """Compares fields of two runs; `quantities` names them for the reader."""
    for name, quantity in quantities.items():
        yield _row(group, quantity, unit, getattr(before, name), getattr(after, name))


def _time_rows(before: SimulatedRun, after: SimulatedRun) -> Iterable[ComparedRow]:
    yield from _fields(before, after, "time", "µs", time_us="simulated time")
    yield from _fields(before, after, "time", "cycles", cycles="cycles")


def _waiting_rows(before: SimulatedRun, after: SimulatedRun) -> Iterable[ComparedRow]:
    yield from _fields(before, after, "waiting", "share", stall_share="all causes")
    yield from _each("waiting", "share", before.stalls, after.stalls)


def _units(before: SimulatedRun, after: SimulatedRun) -> Iterable[ComparedRow]:
    # The matrix units and HBM have rows of their own.
    shown = [{unit: share for unit, share in run.busy.items() if unit not in ("mxu", "dma")} for run in (before, after)]
    return _each("units", "share", *shown)


def _each(group: str, unit: str, before: Mapping[str, float], after: Mapping[str, float]) -> Iterable[ComparedRow]:
    """Makes a row for each name of either side; what is nothing on both is left out."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) or after.get(name):
            yield _row(group, name, unit, before.get(name), after.get(name))


def _traffic(before: tuple[OperandTraffic, ...], after: tuple[OperandTraffic, ...]) -> Iterable[ComparedRow]:
    """Compares operands by their names; kernels' names count only where there are several kernels."""
    several = any(len({operand.kernel for operand in side}) > 1 for side in (before, after))

    def moved(operands: tuple[OperandTraffic, ...]) -> dict[str, float]:
        return {
            f"{operand.kernel} {operand.operand}" if several else operand.operand: operand.moved_bytes
            for operand in operands
            if operand.moved_bytes is not None
        }

    return _each("traffic", "bytes", moved(before), moved(after))


def _only(explanation: Explanation, other: Explanation) -> tuple[str, ...]:
    titles = {saving.title for saving in other.savings}
    return tuple(dict.fromkeys(saving.title for saving in explanation.savings if saving.title not in titles))
