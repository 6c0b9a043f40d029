"""Run the parts of a lesson about slices: on virtual devices in interpret mode, and on the models of slices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from systolic.checking import RunOutcome, run_in_worker
from systolic.chips import Chip
from systolic.compiler import ShardedFunction, WorkerPool, check_available, with_virtual_devices
from systolic.lessons.kernels.rings import ring_of
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner

VIRTUAL_DEVICES = 8
Shapes = tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPart:
    """One function that a lesson shows, on devices in a ring."""

    name: str  # in tables
    kernel: Callable[..., Any]  # computes one device's part
    in_specs: tuple[PartitionSpec, ...]
    out_specs: PartitionSpec
    arguments: Callable[[int], Shapes]  # whole arrays to simulate with, for this number of devices
    run_arguments: Shapes  # whole arrays to run with, on the virtual devices
    link_bytes: Callable[[int], int]  # over each link in one direction, by the number of devices
    reference: Callable[..., Any]  # computes it of whole arrays, in float64, for the virtual devices
    finds: str = ""  # the rule that the run must find violated, if the kernel is wrong on purpose

    @property
    def function(self) -> ShardedFunction:
        """Return the kernel as a function of whole arrays, which are sharded over the ring."""
        return ShardedFunction(fn=self.kernel, mesh=ring_of, in_specs=self.in_specs, out_specs=self.out_specs)

    def wire_us(self, chip: Chip) -> float | None:
        """Return the time of its bytes over one link, both directions at once; None: the links are not known."""
        if chip.links is None:
            return None
        return self.link_bytes(chip.ring_devices) / chip.links.bytes_per_s * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RingResults:
    rows: tuple[dict[str, object], ...]

    @property
    def ok(self) -> bool:
        return all(row["status"] == "ok" for row in self.rows)

    def soundness(self, parts: Sequence[RingPart]) -> str:
        """Return in words how many parts that are meant to be right were right in their run."""
        meant = [part.name for part in parts if not part.finds]
        wrong = {row["part"] for row in self.rows if row["status"] == "wrong"}
        right = sum(name not in wrong for name in meant)
        return f"On {VIRTUAL_DEVICES} virtual devices {right} of {len(meant)} are right and have no race"

    def violations(self, part: str) -> str:
        """Return the rules that a part's run violated."""
        return str(next(row["found"] for row in self.rows if row["part"] == part) or "nothing")

    def times(self, *parts: str) -> str:
        """Return the simulated times of parts on each chip: "v5e 153.1 → 79.8 µs"."""
        chips: dict[Any, dict[Any, Any]] = {}
        for row in self.rows:
            chips.setdefault(row["chip"], {})[row["part"]] = row["simulated_us"]
        rows = ((chip, [times[part] for part in parts]) for chip, times in chips.items())
        shown = (f"{chip} {' → '.join(f'{time:.1f}' for time in times)} µs" for chip, times in rows if all(times))
        return ", ".join(shown) or "no chip has all of them"


def run_on_ring(parts: Sequence[RingPart], chips: Sequence[Chip]) -> RingResults:
    """Run every part on virtual devices with race detection, and compile and simulate it on each chip's slice.

    Raises:
      CompilerMissing: there is no TPU compiler on this machine.
    """
    check_available()
    pairs = [(part, chip) for part in parts for chip in chips]
    with WorkerPool(max_workers=1) as virtual, WorkerPool(max_workers=1) as compilers:
        runs = {part.name: run_virtually(virtual, part, chips[0]) for part in parts}
        outcomes = Runner(compilers).run(_experiment(part, chip) for part, chip in pairs)
        return RingResults(
            rows=tuple(
                _row(part, chip, runs[part.name].result(), timed)
                for (part, chip), timed in zip(pairs, outcomes, strict=True)
            )
        )


def run_virtually(pool: WorkerPool, part: RingPart, chip: Chip) -> Future[RunOutcome]:
    """Run a part in interpret mode on virtual devices. Its pool must be fresh."""
    task = functools.partial(run_in_worker, reference=part.reference, seeds=(0, 1))
    call = Call.described(part.function, part.run_arguments, chip)
    return pool.submit(with_virtual_devices, VIRTUAL_DEVICES, task, call, label=f"running {part.name}")


def _experiment(part: RingPart, chip: Chip) -> Experiment:
    topology = _slice_name(chip)
    label = f"{part.name} for {chip.name} {topology}"
    args = part.arguments(chip.ring_devices)
    return Experiment(fn=part.function, args=args, chip=chip, topology=topology, label=label)


def _slice_name(chip: Chip) -> str:
    """Return the slice of the lesson, "2x4"."""
    return chip.ring_topology.rpartition(":")[2]


def _row(part: RingPart, chip: Chip, checked: RunOutcome, timed: Outcome) -> dict[str, object]:
    rules = tuple(dict.fromkeys(finding.rule for finding in checked.findings if finding.grade == "error"))
    right = checked.summary.ran and (part.finds in rules if part.finds else not rules)
    status, reason = timed.status, timed.located_reason
    if not right:
        status = "wrong"
        reason = "; ".join(map(str, checked.findings)) or f"the run did not find: {part.finds}"
    run = timed.slice_run
    return {
        "part": part.name,
        "chip": chip.name,
        "slice": _slice_name(chip),
        "devices": chip.ring_devices,
        "status": status,
        "link_mb": part.link_bytes(chip.ring_devices) / 1e6,
        "wire_us": part.wire_us(chip),
        "simulated_us": timed.time_us,
        "error_percent": run.error_percent if run is not None else None,
        "skew_us": run.skew_us if run is not None else None,
        "busiest_link_percent": run.link_busy_share * 100 if run is not None else None,
        "max_abs_error": checked.summary.error,
        "tolerance": checked.summary.tolerance,
        "found": ", ".join(rules) or None,
        "reason": reason or None,
    }
