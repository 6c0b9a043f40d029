"""Compare a simulated run with a profile of the same program on a TPU, operation by operation."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from systolic.simulator import OpRun, SimulatedRun, SliceRun
from systolic.support.call_errors import WrongCallError
from systolic.timing.traced_modules import DeviceTrace, TracedModule, TracedOp

PairedBy = Literal["name", "order", ""]

_NUMBER = re.compile(r"(?:\.(?:\d+|clone|remat\d*))+$", re.ASCII)
_MAX_SHOWN = 12  # modules in a message


class ModuleError(WrongCallError, ValueError):
    """A trace does not hold the program, or holds several that may be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """One operation in a simulated run and in a trace; what only one of them has is None on the other side.

    Attributes:
      name: of the simulated operation, or of one that only the trace has.
      traced_name: "" where only the run has it.
      paired_by: "order" for operations with other names: their kind has equally many left on both sides.
      category: XProf's `hlo_category`.
      simulated_calls, measured_calls: of one execution.
      simulated_us, measured_us: of all calls of one execution, without operations inside.
    """

    name: str
    traced_name: str
    paired_by: PairedBy
    category: str
    simulated_calls: int | None
    measured_calls: float | None
    simulated_us: float | None
    measured_us: float | None

    @property
    def ratio(self) -> float | None:
        """Simulated time as a multiple of the measured one."""
        return self.simulated_us / self.measured_us if self.simulated_us is not None and self.measured_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """A simulated run next to the executions of its program in a trace."""

    chip: str
    simulated_us: float
    error_percent: float | None  # of the simulated time
    module: TracedModule
    ops: tuple[OpTimes, ...]  # the longest first

    @property
    def measured_us(self) -> float:
        """Median of the executions."""
        return self.module.time_us

    @property
    def provenance(self) -> Literal["measured", "simulated"]:
        """Say how the times of a trace are known: systolic writes traces too, with simulated times."""
        return "simulated" if self.module.is_simulated else "measured"

    @property
    def slower(self) -> float:
        """Share of the simulated time by which the measured one is longer."""
        return self.measured_us / self.simulated_us - 1

    @property
    def inside_error(self) -> bool | None:
        """True if the measured time is within the error of the simulated one; None if the error is unknown."""
        return None if self.error_percent is None else abs(self.slower) <= self.error_percent / 100

    def median_error(self, least_share: float = 0.0) -> float | None:
        """Return the median of |simulated / measured − 1| over operations in both; None if there is none.

        Args:
          least_share: of the program's measured time, that an operation takes.
        """
        errors = [abs(op.ratio - 1) for op in self.paired(least_share) if op.ratio is not None]
        return statistics.median(errors) if errors else None

    def paired(self, least_share: float = 0.0) -> list[OpTimes]:
        """Return the operations that have both times."""
        least_us = least_share * self.measured_us
        return [op for op in self.ops if op.ratio is not None and (op.measured_us or 0.0) >= least_us]


def compare_with_trace(run: SimulatedRun | SliceRun, module: TracedModule) -> TraceComparison:
    """Compare a run, on a slice its slowest device, with a traced program."""
    device = run.slowest if isinstance(run, SliceRun) else run
    us = 1e6 / device.clock_hz
    simulated = sorted(device.later_core.ops, key=lambda op: op.begin_cycles)
    pairs, by_order = _paired(simulated, module.ops)
    ops = [_times(op, traced, us, "order" if op.name in by_order else "name") for op, traced in pairs]
    names = {op.name for op, _ in pairs}, {traced.name for _, traced in pairs}
    ops += [_times(op, None, us, "") for op in simulated if op.name not in names[0]]
    ops += [_times(None, traced, us, "") for traced in module.ops if traced.name not in names[1]]
    return TraceComparison(
        chip=run.chip,
        simulated_us=run.time_us,
        error_percent=run.error_percent,
        module=module,
        ops=tuple(sorted(ops, key=lambda op: -max(op.measured_us or 0.0, op.simulated_us or 0.0))),
    )


def module_of(trace: DeviceTrace, names: Sequence[str], requested: str | None) -> TracedModule:
    """Return the program in a trace; if several devices ran it, from the one that took longest.

    Args:
      names: modules of the simulated runs; "" if not known.
      requested: the name, with or without its number; None: one of `names`, or the only one in the trace.

    Raises:
      ModuleError: there is none, or several that may be meant.
    """
    base_names = {module.name: module.base_name for module in trace.modules}
    if requested is not None:
        chosen = [name for name, base in base_names.items() if requested in (name, base)]
    else:
        chosen = [name for name, base in base_names.items() if base in names] or list(base_names)
    if len(chosen) != 1:
        why = f"no module {requested}" if not chosen else f"{len(chosen)} modules that may be meant"
        listed = sorted(chosen or base_names, key=lambda name: -sum(_of(trace, name)[0].times_us))
        rest = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
        texts = [f"{name} ({_summary(_of(trace, name))})" for name in listed[:_MAX_SHOWN]]
        raise ModuleError(f"the trace has {why}: choose one by --module, from {', '.join(texts)}{rest}")
    return max(_of(trace, chosen[0]), key=lambda module: module.time_us)


def _of(trace: DeviceTrace, name: str) -> list[TracedModule]:
    return [module for module in trace.modules if module.name == name]


def _summary(modules: Sequence[TracedModule]) -> str:
    return f"{len(modules[0].times_us)} × {modules[0].time_us:,.1f} µs"


def _times(op: OpRun | None, traced: TracedOp | None, us: float, paired_by: PairedBy) -> OpTimes:
    return OpTimes(
        name=op.name if op is not None else traced.name if traced is not None else "",
        traced_name=traced.name if traced is not None else "",
        paired_by=paired_by,
        category=(op.category if op is not None else "") or (traced.category if traced is not None else ""),
        simulated_calls=op.calls if op is not None else None,
        measured_calls=traced.calls if traced is not None else None,
        simulated_us=op.cycles * us if op is not None else None,
        measured_us=traced.time_us if traced is not None else None,
    )


def _paired(
    simulated: Sequence[OpRun], traced: Sequence[TracedOp]
) -> tuple[list[tuple[OpRun, TracedOp]], frozenset[str]]:
    """Pair operations by name; then by order, those whose stem or category has equally many left on both sides.

    Another version of the compiler numbers fusions differently: an equal name is no pair if the kinds of operation
    differ.

    Returns:
      The pairs, and the simulated names of those that were paired by order.
    """
    by_name = {op.name: op for op in traced}
    pairs = [(op, by_name[op.name]) for op in simulated if op.name in by_name and _alike(op, by_name[op.name])]
    named = len(pairs)
    keys: tuple[Callable[[OpRun | TracedOp], str], ...] = (
        lambda op: _NUMBER.sub("", op.name),
        lambda op: op.category,
    )
    for key in keys:
        left = _grouped(simulated, {op.name for op, _ in pairs}, key)
        others = _grouped(traced, {other.name for _, other in pairs}, key)
        for kind, ops in left.items():
            candidates = others.get(kind, [])
            if kind and len(candidates) == len(ops) and all(map(_alike, ops, candidates)):
                pairs += zip(ops, candidates, strict=True)
    return pairs, frozenset(op.name for op, _ in pairs[named:])


def _grouped(ops: Iterable, taken: set[str], key: Callable[[OpRun | TracedOp], str]) -> dict[str, list]:
    groups: dict[str, list] = defaultdict(list)
    for op in ops:
        if op.name not in taken:
            groups[key(op)].append(op)
    return groups


def _alike(op: OpRun, traced: TracedOp) -> bool:
    """True unless both categories are known and differ; a fusion's text does not tell that it multiplies."""
    kinds = ["fusion" if category.endswith("fusion") else category for category in (op.category, traced.category)]
    return not all(kinds) or kinds[0] == kinds[1]
