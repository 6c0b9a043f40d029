"""Between chips · An all-gather and a reduce-scatter by hand, in a ring of chips.

    all-gather       every device ends with all blocks        each sends 1 MiB on, seven times, with eight devices
    reduce-scatter   every device ends with one block's sum   the same bytes in the other direction

The kernels are in `kernels/rings.py`. They get references to HBM and copy from there, to a neighbor's HBM or VMEM: a
kernel that only moves bytes needs no block in VMEM.

In a ring, either collective sends (count − 1) blocks over each link, and no other route sends fewer. But a link carries
both directions at once. Half of each block to the right and half to the left is the same program with two copies a hop,
and takes half the time.

Faults of collectives are in their waits, and the time does not show them:

    a wait too few   the neighbor's copy is passed on, perhaps before it has arrived: a race, and no slower
    a wait too many  one direction's copy is waited for before the other's starts: right, and no faster than one way

If a wait is missing, the numbers are right as long as all devices keep pace. In interpret mode on eight virtual devices
the race detector reports it. No check reports a superfluous wait, because nothing is wrong; the simulated time and the
busy share of the links show it.

Times are simulated: the real compiler's program for a slice, on a model of its devices and of the links between them.
The tables also have the time of the bytes alone over one link. A hop takes longer than its bytes: it also starts the
copy, crosses the link, stores the data, and waits. XLA copies the kernel's result once more, because it must lie at the
same address on all devices.

This follows "Pallas Tutorial Notes": passing HBM buffers, and semaphores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from systolic.checking import RunOutcome, run_in_worker
from systolic.chips import Chip
from systolic.compiler import ShardedFunction, WorkerPool, check_available, with_virtual_devices
from systolic.lessons.kernels.rings import RING, all_gather, reduce_scatter, ring_of
from systolic.lessons.lesson import Lesson
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner

_VIRTUAL = 8
ROWS, COLUMNS = 256, 1024  # of one block, 1 MiB
_RUN_ROWS, _RUN_COLUMNS = 16, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One function of the lesson."""

    name: str  # in tables
    kernel: Callable[..., Any]  # computes one device's part
    reduces: bool  # its argument has a block for every device on each
    ways: int  # number of directions
    reference: Callable[..., Any]  # computes it of the whole argument, in float64, for eight devices
    finds: str = ""  # what the run must find, if the kernel is wrong on purpose

    @property
    def function(self) -> ShardedFunction:
        """Return the kernel as a function of whole arrays, which are sharded over the ring."""
        spec = PartitionSpec(RING)
        return ShardedFunction(fn=self.kernel, mesh=ring_of, in_specs=(spec,), out_specs=spec)

    def argument(self, devices: int, rows: int, columns: int) -> jax.ShapeDtypeStruct:
        """Return the whole array for `devices` devices."""
        blocks = devices * devices if self.reduces else devices
        return jax.ShapeDtypeStruct((blocks * rows, columns), jnp.float32)

    def bytes_per_link(self, devices: int) -> int:
        """Return bytes over each link in one direction."""
        return (devices - 1) * ROWS * COLUMNS * 4 // self.ways


def _gathered(x: Array) -> Array:
    return jnp.tile(x, (_VIRTUAL, 1))


def _summed(x: Array) -> Array:
    return x.reshape(_VIRTUAL, -1, x.shape[1]).sum(0)


def _gather(name: str, *ways: int, finds: str = "", **chosen: bool) -> Collective:
    kernel = functools.partial(all_gather, ways=ways, **chosen)
    return Collective(name=name, kernel=kernel, reduces=False, ways=len(ways), reference=_gathered, finds=finds)


def _scatter(name: str, *ways: int) -> Collective:
    kernel = functools.partial(reduce_scatter, ways=ways)
    return Collective(name=name, kernel=kernel, reduces=True, ways=len(ways), reference=_summed)


COLLECTIVES = (
    _gather("all-gather, one way", 1),
    _gather("all-gather, both ways", 1, -1),
    _scatter("reduce-scatter, one way", 1),
    _scatter("reduce-scatter, both ways", 1, -1),
    _gather("all-gather, a wait too few", 1, waits=False, finds="race"),
    _gather("all-gather, a wait too many", 1, -1, in_turn=True),
)


def run(pool: WorkerPool, collective: Collective, chip: Chip) -> Future[RunOutcome]:
    """Run a collective in interpret mode on virtual devices. Its pool must be fresh."""
    task = functools.partial(run_in_worker, reference=collective.reference, seeds=(0, 1))
    argument = collective.argument(_VIRTUAL, _RUN_ROWS, _RUN_COLUMNS)
    call = Call.described(collective.function, (argument,), chip)
    return pool.submit(with_virtual_devices, _VIRTUAL, task, call, label=f"running {collective.name}")


def experiment(collective: Collective, chip: Chip) -> Experiment:
    """Return the collective on all devices of the chip's slice, with 1 MiB for each."""
    argument = collective.argument(chip.ring_devices, ROWS, COLUMNS)
    topology = slice_name(chip)
    label = f"{collective.name} for {chip.name} {topology}"
    return Experiment(fn=collective.function, args=(argument,), chip=chip, topology=topology, label=label)


def slice_name(chip: Chip) -> str:
    """Return the slice of the lesson, "2x4"."""
    return chip.ring_topology.rpartition(":")[2]


def wire_us(collective: Collective, chip: Chip) -> float | None:
    """Return the time of its bytes over one link, both directions at once; None: the chip's links are not known."""
    return (
        collective.bytes_per_link(chip.ring_devices) / chip.links.bytes_per_s * 1e6 if chip.links is not None else None
    )


def _row(collective: Collective, chip: Chip, checked: RunOutcome, timed: Outcome) -> dict[str, object]:
    rules = tuple(dict.fromkeys(finding.rule for finding in checked.findings if finding.grade == "error"))
    right = checked.summary.ran and (collective.finds in rules if collective.finds else not rules)
    status, reason = timed.status, timed.located_reason
    if not right:
        status = "wrong"
        reason = "; ".join(map(str, checked.findings)) or f"the run did not find: {collective.finds}"
    run = timed.slice_run
    return {
        "part": collective.name,
        "chip": chip.name,
        "slice": slice_name(chip),
        "devices": chip.ring_devices,
        "status": status,
        "link_mb": collective.bytes_per_link(chip.ring_devices) / 1e6,
        "wire_us": wire_us(collective, chip),
        "simulated_us": timed.time_us,
        "error_percent": run.error_percent if run is not None else None,
        "skew_us": run.skew_us if run is not None else None,
        "busiest_link_percent": run.link_busy_share * 100 if run is not None else None,
        "max_abs_error": checked.summary.error,
        "tolerance": checked.summary.tolerance,
        "found": ", ".join(rules) or None,
        "reason": reason or None,
    }


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run both collectives, one way and both ways round, on virtual devices, and simulate them on each chip's slice."""
    check_available()
    pairs = [(collective, chip) for collective in COLLECTIVES for chip in chips]
    with WorkerPool(max_workers=1) as virtual, WorkerPool(max_workers=1) as compilers:
        runs = {collective.name: run(virtual, collective, chips[0]) for collective in COLLECTIVES}
        outcomes = Runner(compilers).run(experiment(collective, chip) for collective, chip in pairs)
        rows = [
            _row(collective, chip, runs[collective.name].result(), timed)
            for (collective, chip), timed in zip(pairs, outcomes, strict=True)
        ]
    times = {
        (collective.name, chip.name): timed.time_us for (collective, chip), timed in zip(pairs, outcomes, strict=True)
    }
    one_way, both_ways, _, _, too_few, too_many = (collective.name for collective in COLLECTIVES)
    sound = [row for row in rows if row["part"] != too_few]
    right = sum(row["status"] != "wrong" for row in sound) // len(chips)
    missed = next(row["found"] for row in rows if row["part"] == too_few)
    return Lesson(
        lines=(
            f"On {_VIRTUAL} virtual devices {right} of {len(COLLECTIVES) - 1} are right and have no race; with a wait "
            f"too few the run finds: {missed or 'nothing'}.",
            f"All-gather one way → both ways, simulated: {_times(times, chips, one_way, both_ways)}.",
            f"The race costs nothing, with the wait → without: {_times(times, chips, one_way, too_few)}.",
            f"A wait too many does, both ways at once → in turn: {_times(times, chips, both_ways, too_many)}.",
        ),
        rows=tuple(rows),
        ok=all(row["status"] == "ok" for row in rows),
    )


def _times(times: Mapping[tuple[str, str], float | None], chips: Sequence[Chip], before: str, after: str) -> str:
    """Return two simulated times on each chip: "v5e 153.1 → 79.8 µs"."""
    pairs = ((chip.name, times[before, chip.name], times[after, chip.name]) for chip in chips)
    return ", ".join(f"{name} {a:.1f} → {b:.1f} µs" for name, a, b in pairs if a and b) or "no chip has both"
