"""Compare two explanations, or two simulated runs, of the same thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from systolic.explaining import Explanation, OperandTraffic
from systolic.report.comparison import ComparedRow, Comparison
from systolic.report.explained_tables import program, rate_tflops
from systolic.simulator import SimulatedRun, SliceRun, same_kernel
from systolic.support.call_errors import WrongCallError

Run = SimulatedRun | SliceRun


class NotComparableError(WrongCallError, TypeError):
    """Two things that have nothing in common to be compared."""


def compare(before: Explanation | Run, after: Explanation | Run, *, names: tuple[str, str] = ("", "")) -> Comparison:
    """Return what changed from one explanation to another, or from one simulated run to another.

        before = systolic.simulate(jnp.matmul, x, w, chip="v6e")
        after = systolic.simulate(kernel, x, w, chip="v6e")
        print(systolic.compare(before, after, names=("jnp.matmul", "kernel")))

    Args:
      before: an `Explanation`, a `SimulatedRun` or a `SliceRun`.
      after: the same; runs of one device and of a slice may be compared.
      names: of the two functions, for runs; an explanation has its function's.

    Raises:
      NotComparableError: one is an explanation and the other is not, or one is neither that nor a run.
    """
    if isinstance(before, Explanation) and isinstance(after, Explanation):
        return compare_explanations(before, after)
    if isinstance(before, SimulatedRun | SliceRun) and isinstance(after, SimulatedRun | SliceRun):
        return compare_runs(before, after, names=names)
    kinds = " and ".join(type(run).__name__ for run in (before, after))
    raise NotComparableError(f"cannot compare {kinds}: give two explanations, or two simulated runs")


def compare_runs(before: Run, after: Run, *, names: tuple[str, str]) -> Comparison:
    """Compare time, waiting and communication of two runs; `names` are their functions'.

    On a slice, waiting is the slowest device's.
    """
    rows = (*_time_rows(before, after), *_waiting_rows(before, after), *_communication(before, after))
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
    """Compare the numbers of two explanations, and list the findings that went and came."""
    first, second = before.run, after.run
    runs = [explanation.slice_run or explanation.run for explanation in (before, after)]
    xla = [program(explanation, "xla") for explanation in (before, after)]
    rows = [
        *_time_rows(first, second),
        _row("time", "rate", "Tflop/s", *(rate_tflops(explanation.programs[0]) for explanation in (before, after))),
        _row("time", "XLA", "µs", *(xla_program.time_us if xla_program else None for xla_program in xla)),
        *_waiting_rows(first, second),
        *_communication(*runs),
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
        **_errors(*runs),
    )


def _errors(before: Run, after: Run) -> dict[str, Any]:
    """Return the fields of a comparison with the compared functions and their errors."""
    return {
        "error_before": before.error,
        "error_after": after.error,
        "same_kernel": same_kernel(_device(before), _device(after)),
        "topology_before": before.topology if isinstance(before, SliceRun) else "",
        "topology_after": after.topology if isinstance(after, SliceRun) else "",
    }


def _device(run: Run) -> SimulatedRun:
    """Return the run of the device, on a slice of the slowest."""
    return run.slowest if isinstance(run, SliceRun) else run


def _row(group: str, quantity: str, unit: str, before: float | None, after: float | None) -> ComparedRow:
    return ComparedRow(group=group, quantity=quantity, unit=unit, before=before, after=after)


def _fields(before: Run, after: Run, group: str, unit: str, **quantities: str) -> Iterable[ComparedRow]:
    """Compare fields of two runs; `quantities` names them for the reader."""
    for name, quantity in quantities.items():
        yield _row(group, quantity, unit, getattr(before, name), getattr(after, name))


def _time_rows(before: Run, after: Run) -> Iterable[ComparedRow]:
    yield from _fields(before, after, "time", "µs", time_us="simulated time")
    yield from _fields(before, after, "time", "cycles", cycles="cycles")


def _waiting_rows(before: Run, after: Run) -> Iterable[ComparedRow]:
    first, second = _device(before), _device(after)
    yield from _fields(first, second, "waiting", "share", stall_share="all causes")
    yield from _each("waiting", "share", first.stalls, second.stalls)


def _communication(before: Run, after: Run) -> Iterable[ComparedRow]:
    """Compare communication between devices of a slice; collectives go by their HLO names."""
    sides = [_communication_amounts(run) if isinstance(run, SliceRun) else {} for run in (before, after)]
    for quantity, unit in dict.fromkeys((*sides[0], *sides[1])):
        values = [side.get((quantity, unit)) for side in sides]
        if any(values):
            yield _row("communication", quantity, unit, values[0], values[1])
    times = [
        {collective.name: collective.cycles / run.clock_hz * 1e6 for collective in run.collectives}
        if isinstance(run, SliceRun)
        else {}
        for run in (before, after)
    ]
    yield from _each("collective", "µs", *times)


def _communication_amounts(run: SliceRun) -> dict[tuple[str, str], float]:
    """Return the quantities of communication, with their units."""
    return {
        ("exposed", "µs"): run.exposed_us,
        ("hidden", "µs"): run.hidden_us,
        ("exposed share", "share"): run.exposed_us / run.time_us if run.time_us else 0.0,
        ("sent by a device", "bytes"): run.sent_bytes,
        ("busiest link", "share"): run.link_busy_share,
        ("skew", "µs"): run.skew_us,
    }


def _units(before: SimulatedRun, after: SimulatedRun) -> Iterable[ComparedRow]:
    # The matrix units and HBM have rows of their own.
    shown = [{unit: share for unit, share in run.busy.items() if unit not in ("mxu", "dma")} for run in (before, after)]
    return _each("units", "share", *shown)


def _each(group: str, unit: str, before: Mapping[str, float], after: Mapping[str, float]) -> Iterable[ComparedRow]:
    """Make a row for each name of either side; rows without a value on both are left out."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) or after.get(name):
            yield _row(group, name, unit, before.get(name), after.get(name))


def _traffic(before: tuple[OperandTraffic, ...], after: tuple[OperandTraffic, ...]) -> Iterable[ComparedRow]:
    """Compare operands by their names; kernels' names count only where there are several kernels."""
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
