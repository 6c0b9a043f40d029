"""Add up the operations of a run by parts of the model and passes over it, by their name stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from systolic.simulator import CollectiveRun, CoreRun, OpRun, SimulatedRun
from systolic.steps.parts import BETWEEN, PASSES, Pass, is_differentiated, part_of, pass_of
from systolic.steps.records import PartRun

_UNITS = {
    "vpu": "vector units",
    "xlu": "moves across lanes",
    "eup": "transcendental functions",
    "load": "vector loads",
    "store": "vector stores",
    "pop": "fetching results",
    "scalar": "scalar code",
}


@dataclass(slots=True)
class _Total:
    cycles: int = 0
    matrix_busy_cycles: int = 0
    hbm_bytes: int = 0
    exposed_cycles: int = 0
    sent_bytes: int = 0
    issued: Counter[str] = field(default_factory=Counter)

    def add(self, op: OpRun) -> None:
        self.cycles += op.cycles
        self.matrix_busy_cycles += op.matrix_busy_cycles
        self.hbm_bytes += op.hbm_read_bytes + op.hbm_written_bytes
        self.issued.update(op.issued)


def part_runs(
    run: SimulatedRun, collectives: Sequence[CollectiveRun], scopes: Mapping[str, str], parts: Sequence[str]
) -> tuple[PartRun, ...]:
    """Return the parts, the longest first, of the device that ends last.

    `scopes` are name stacks of the program's operations, by name; without names of parts see `part_of`.
    """
    core = run.later_core
    differentiated = is_differentiated(scopes.values())
    totals: dict[tuple[str, Pass], _Total] = {}

    def total(scope: str) -> _Total:
        key = part_of(scope, parts), pass_of(scope, differentiated=differentiated)
        return totals.setdefault(key, _Total())

    for op in core.ops:
        total(op.scope).add(op)
    called = {op.name for op in core.ops}
    for collective in collectives:
        sums = total(scopes.get(collective.name, ""))
        sums.exposed_cycles += collective.exposed_cycles
        sums.sent_bytes += collective.sent_bytes
        if collective.name not in called:  # the top-level program itself sends and waits
            sums.cycles += collective.exposed_cycles
    runs = [_part_run(part, in_pass, sums, run) for (part, in_pass), sums in totals.items() if sums.cycles]
    runs.sort(key=lambda part_run: (-_of_part(part_run.part, totals), PASSES.index(part_run.in_pass)))
    rest = core.cycles - sum(part_run.cycles for part_run in runs)
    return (*runs, _between(core, rest)) if rest > 0 else tuple(runs)


def whole_run(run: SimulatedRun) -> PartRun:
    """Return the whole program as one part, which says what is busiest."""
    core, total = run.later_core, _Total()
    for op in core.ops:
        total.add(op)
    total.cycles = core.cycles
    total.hbm_bytes = core.hbm_read_bytes + core.hbm_written_bytes
    return _part_run("", "all", total, run)


def _between(core: CoreRun, cycles: int) -> PartRun:
    """Return the rest, in which the top-level program starts copies and operations, and waits for copies."""
    moved = sum(op.hbm_read_bytes + op.hbm_written_bytes for op in core.ops)
    waited = core.copy_stall_cycles - sum(op.copy_stall_cycles for op in core.ops)
    return PartRun(
        part=BETWEEN,
        in_pass="all",
        cycles=cycles,
        matrix_busy_cycles=0,
        hbm_bytes=core.hbm_read_bytes + core.hbm_written_bytes - moved,
        exposed_cycles=0,
        sent_bytes=0,
        limit="waits for copies",
        limit_share=min(1.0, waited / cycles),
    )


def _of_part(part: str, totals: Mapping[tuple[str, Pass], _Total]) -> int:
    return sum(sums.cycles for (other, _), sums in totals.items() if other == part)


def _part_run(part: str, in_pass: Pass, total: _Total, run: SimulatedRun) -> PartRun:
    cycles = total.cycles
    cores = len(run.cores)
    shares = {
        "matrix units": total.matrix_busy_cycles / (cycles * run.matrix_units),
        # The other cores of a device do the same meanwhile, and HBM is one for all.
        "HBM": cores * total.hbm_bytes / (run.hbm_bytes_per_cycle * cycles) if run.hbm_bytes_per_cycle else 0.0,
        "communication": total.exposed_cycles / cycles,
        **{
            words: total.issued[unit] / (run.slots[unit] * cycles)
            for unit, words in _UNITS.items()
            if unit in run.slots
        },
    }
    limit = max(shares, key=lambda name: shares[name])
    sums = {field.name: getattr(total, field.name) for field in fields(total) if field.name != "issued"}
    return PartRun(part=part, in_pass=in_pass, limit=limit, limit_share=shares[limit], **sums)
