"""Two explanations, or two simulated runs, of the same thing: what changed from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from systolic.explaining import Explanation, OperandTraffic
from systolic.simulator import SimulatedRun


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

    @property
    def before_us(self) -> float:
        """The first's simulated time."""
        return self._time("before")

    @property
    def after_us(self) -> float:
        """The second's simulated time."""
        return self._time("after")

    @property
    def slower(self) -> float:
        """How much longer the second takes, relative to the first: 0.1 is a tenth longer."""
        return self.after_us / self.before_us - 1 if self.before_us else 0.0

    def _time(self, side: str) -> float:
        value = getattr(self.rows[0], side)
        assert value is not None
        return value


def compare_runs(before: SimulatedRun, after: SimulatedRun, *, names: tuple[str, str]) -> Comparison:
    """Time and waiting of two runs, of the functions named."""
    rows = (*_time_rows(before, after), *_waiting_rows(before, after))
    return Comparison(chip=after.chip, before=names[0], after=names[1], rows=rows)


def compare_explanations(before: Explanation, after: Explanation) -> Comparison:
    """Everything that two explanations both say in numbers, and the findings that went and came."""
    gone, new = _only(before, after), _only(after, before)
    first, second = before.run, after.run
    rows = [
        *_time_rows(first, second),
        _row("time", "rate", "Tflop/s", _rate(before), _rate(after)),
        _row("time", "XLA", "µs", _xla_us(before), _xla_us(after)),
        *_waiting_rows(first, second),
        _row("units", "matrix units busy", "share", first.matrix_busy_share, second.matrix_busy_share),
        _row("units", "HBM busy", "share", first.copy_busy_share, second.copy_busy_share),
        *_units(first, second),
        _row("memory", "HBM read", "bytes", first.hbm_read_bytes, second.hbm_read_bytes),
        _row("memory", "HBM written", "bytes", first.hbm_written_bytes, second.hbm_written_bytes),
        _row("memory", "VMEM", "bytes", first.vmem_bytes, second.vmem_bytes),
        _row("memory", "spilled registers", "bytes", first.spill_bytes, second.spill_bytes),
        _row("memory", "code", "bundles", first.bundles, second.bundles),
        *_traffic(before.traffic, after.traffic),
    ]
    return Comparison(
        chip=after.chip,
        before=before.function,
        after=after.function,
        rows=tuple(row for row in rows if row.before is not None or row.after is not None),
        findings_gone=gone,
        findings_new=new,
    )


def _row(group: str, quantity: str, unit: str, before: float | None, after: float | None) -> ComparedRow:
    return ComparedRow(group=group, quantity=quantity, unit=unit, before=before, after=after)


def _time_rows(before: SimulatedRun, after: SimulatedRun) -> tuple[ComparedRow, ...]:
    return (
        _row("time", "simulated time", "µs", before.time_us, after.time_us),
        _row("time", "cycles", "cycles", before.cycles, after.cycles),
    )


def _waiting_rows(before: SimulatedRun, after: SimulatedRun) -> tuple[ComparedRow, ...]:
    return (
        _row("waiting", "all causes", "share", before.stall_share, after.stall_share),
        *_each("waiting", "share", before.stalls, after.stalls),
    )


def _units(before: SimulatedRun, after: SimulatedRun) -> Iterable[ComparedRow]:
    # The matrix units and HBM have rows of their own.
    shown = [{unit: share for unit, share in run.busy.items() if unit not in ("mxu", "dma")} for run in (before, after)]
    return _each("units", "share", shown[0], shown[1])


def _each(group: str, unit: str, before: Mapping[str, float], after: Mapping[str, float]) -> Iterable[ComparedRow]:
    """A row for each name of either side; what is nothing on both says nothing."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) or after.get(name):
            yield _row(group, name, unit, before.get(name), after.get(name))


def _traffic(before: tuple[OperandTraffic, ...], after: tuple[OperandTraffic, ...]) -> Iterable[ComparedRow]:
    """Operands by their names; kernels' names count only where there are several kernels."""
    several = any(len({operand.kernel for operand in side}) > 1 for side in (before, after))

    def moved(operands: tuple[OperandTraffic, ...]) -> dict[str, float]:
        return {
            f"{operand.kernel} {operand.operand}" if several else operand.operand: operand.moved_bytes
            for operand in operands
            if operand.moved_bytes is not None
        }

    return _each("traffic", "bytes", moved(before), moved(after))


def _rate(explanation: Explanation) -> float | None:
    mine = explanation.programs[0]
    return mine.flops / mine.time_us / 1e6 if mine.time_us and mine.flops else None


def _xla_us(explanation: Explanation) -> float | None:
    return next((found.time_us for found in explanation.programs if found.role == "xla"), None)


def _only(explanation: Explanation, other: Explanation) -> tuple[str, ...]:
    titles = {saving.title for saving in other.savings}
    return tuple(dict.fromkeys(saving.title for saving in explanation.savings if saving.title not in titles))
