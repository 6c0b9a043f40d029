"""Between chips · An all-gather and a reduce-scatter by hand, round a ring of chips.

    all-gather       every device ends with all blocks        each sends 1 MiB on, seven times, with eight devices
    reduce-scatter   every device ends with one block's sum   the same bytes the other way about

The kernels are in `kernels/rings.py`. They are given references to HBM and copy from there, to a neighbour's HBM or
VMEM: for what only moves bytes, no block ever needs to be in VMEM.

A ring sends (count − 1) blocks over each link, whichever collective it is, and no way round takes fewer. But a link
carries both directions at once: half of each block to the right and half to the left is the same program with two
copies a hop, and half the time.

A collective goes wrong in its waits. Leaving out the one for the neighbour's copy still gives the right numbers as long
as all devices keep pace. In interpret mode on eight virtual devices the race detector finds it: each hop then passes on
a block that may not have come.

Times are modelled from the published bandwidth of one link in one direction: bytes alone, no latency of hops. The
simulator runs one device and does not know what comes from others. On v7x two devices are one chip; the ring goes
through both, and what is modelled are its links between chips.

The notes that this follows: "Pallas Tutorial Notes": passing HBM buffers, and semaphores.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from systolic.checking import RunOutcome, run_in_worker
from systolic.chips import Chip
from systolic.compiler import (
    CompiledProgram,
    CompilerError,
    ShardedFunction,
    WorkerPool,
    check_available,
    submit_compilation,
    tracing_settings,
    with_virtual_devices,
)
from systolic.experiments import Outcome
from systolic.lessons.kernels.rings import RING, all_gather, reduce_scatter, ring_of
from systolic.lessons.lesson import Lesson
from systolic.timing import target_of

_VIRTUAL = 8
ROWS, COLUMNS = 256, 1024  # of one block, 1 MiB
_RUN_ROWS, _RUN_COLUMNS = 16, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One function of the lesson.

    Attributes:
      name: for tables.
      kernel: of one device's part.
      reduces: whether its argument has a block for every device on each.
      ways: how many directions it uses.
      reference: of the whole argument, in float64, for eight devices.
      finds: what the run must find, of one that is wrong on purpose.
    """

    name: str
    kernel: Callable[..., Any]
    reduces: bool
    ways: int
    reference: Callable[..., Any]
    finds: str = ""

    @property
    def function(self) -> ShardedFunction:
        """The kernel as a function of whole arrays, which are sharded over the ring."""
        spec = PartitionSpec(RING)
        return ShardedFunction(fn=self.kernel, mesh=ring_of, in_specs=(spec,), out_specs=spec)

    def argument(self, devices: int, rows: int, columns: int) -> jax.ShapeDtypeStruct:
        """The whole array of as many devices."""
        blocks = devices * devices if self.reduces else devices
        return jax.ShapeDtypeStruct((blocks * rows, columns), jnp.float32)

    def bytes_per_link(self, devices: int) -> int:
        """Bytes that go over each link in one direction."""
        return (devices - 1) * ROWS * COLUMNS * 4 // self.ways


def _gathered(x: Array) -> Array:
    return jnp.tile(x, (_VIRTUAL, 1))


def _summed(x: Array) -> Array:
    return x.reshape(_VIRTUAL, -1, x.shape[1]).sum(0)


def _gather(name: str, *ways: int, **chosen: Any) -> Collective:
    kernel = functools.partial(all_gather, ways=ways, waits=not chosen)
    return Collective(name=name, kernel=kernel, reduces=False, ways=len(ways), reference=_gathered, **chosen)


def _scatter(name: str, *ways: int) -> Collective:
    kernel = functools.partial(reduce_scatter, ways=ways)
    return Collective(name=name, kernel=kernel, reduces=True, ways=len(ways), reference=_summed)


COLLECTIVES = (
    _gather("all-gather, one way", 1),
    _gather("all-gather, both ways", 1, -1),
    _scatter("reduce-scatter, one way", 1),
    _scatter("reduce-scatter, both ways", 1, -1),
    _gather("all-gather, a wait missing", 1, finds="race"),
)


def run(pool: WorkerPool, one: Collective, chip: Chip) -> Future[RunOutcome]:
    """Runs a collective in interpret mode on virtual devices. Its pool has done nothing else."""
    task = functools.partial(run_in_worker, reference=one.reference, seeds=(0, 1), settings=tracing_settings())
    argument = one.argument(_VIRTUAL, _RUN_ROWS, _RUN_COLUMNS)
    label = f"running {one.name}"
    return pool.submit(with_virtual_devices, _VIRTUAL, task, one.function, (argument,), (None,), chip, label=label)


def compiled(pool: WorkerPool, one: Collective, chip: Chip) -> Future[CompiledProgram]:
    """Compiles it for all devices of the chip's slice."""
    target = dataclasses.replace(target_of(chip), topology=chip.ring_topology)
    argument = one.argument(chip.ring_devices, ROWS, COLUMNS)
    # Not kept: that text of the program by which kept ones are found does not say in which order the devices are.
    label = f"{one.name} for {target.topology}"
    return submit_compilation(pool, one.function, (argument,), target, cache=None, label=label)


def modelled_us(one: Collective, chip: Chip) -> float:
    """The time that its bytes take over one link, both directions of it at once."""
    return one.bytes_per_link(chip.ring_devices) / chip.ici_bytes_per_s_per_link * 1e6


def _row(one: Collective, chip: Chip, outcome: RunOutcome, program: Future[CompiledProgram]) -> dict[str, object]:
    found = tuple(dict.fromkeys(each.rule for each in outcome.findings if each.grade == "error"))
    right = outcome.summary.ran and (one.finds in found if one.finds else not found)
    reason = "" if right else "; ".join(map(str, outcome.findings)) or f"the run did not find: {one.finds}"
    status = "ok" if right else "wrong"
    code_bytes = None
    try:
        code_bytes = program.result().generated_code_bytes
    except CompilerError as error:
        ended = Outcome.failed(one.name, error)
        status, reason = ended.status, ended.located_reason
    return {
        "part": one.name,
        "chip": chip.name,
        "slice": chip.ring_topology,
        "devices": chip.ring_devices,
        "status": status,
        "link_mb": one.bytes_per_link(chip.ring_devices) / 1e6,
        "link_gb_per_s": chip.ici_bytes_per_s_per_link / 1e9,
        "modelled_us": modelled_us(one, chip),
        "code_kib": None if code_bytes is None else code_bytes / 2**10,
        "max_abs_error": outcome.summary.error,
        "tolerance": outcome.summary.tolerance,
        "found": ", ".join(found) or None,
        "reason": reason or None,
    }


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Both collectives, one way and both ways round: run on virtual devices, compiled for a slice, times modelled."""
    check_available()
    with WorkerPool(max_workers=1) as virtual, WorkerPool(max_workers=1) as compilers:
        runs = {one.name: run(virtual, one, chips[0]) for one in COLLECTIVES}
        programs = {(one.name, chip.name): compiled(compilers, one, chip) for one in COLLECTIVES for chip in chips}
        rows = [
            _row(one, chip, runs[one.name].result(), programs[one.name, chip.name])
            for one in COLLECTIVES
            for chip in chips
        ]
    one_way, both_ways, *_, fault = COLLECTIVES
    times = ", ".join(
        f"{chip.name} {modelled_us(one_way, chip):.0f} → {modelled_us(both_ways, chip):.0f} µs" for chip in chips
    )
    sound = [row for row in rows if row["part"] != fault.name]
    right = sum(row["status"] != "wrong" for row in sound) // len(chips)
    compiled_rows = sum(row["code_kib"] is not None for row in rows)
    return Lesson(
        lines=(
            f"On {_VIRTUAL} virtual devices {right} of {len(COLLECTIVES) - 1} are right and have no race; without one "
            f"wait the run finds: {rows[-1]['found'] or 'nothing'}.",
            f"Compiled for {', '.join(chip.ring_topology for chip in chips)}: {compiled_rows} of {len(rows)}.",
            f"All-gather one way → both ways, modelled from the links' published bandwidth: {times}.",
        ),
        rows=tuple(rows),
        ok=all(row["status"] == "ok" for row in rows),
    )
