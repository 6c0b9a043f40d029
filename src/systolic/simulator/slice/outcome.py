"""Make one record of all devices: classes of equal devices, links, and communications."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from systolic.accuracy.time_error import time_error
from systolic.chips import Chip, SliceShape
from systolic.simulator.core_records import CoreRun, OpRun, SparseCoreRun
from systolic.simulator.records import SimulatedRun
from systolic.simulator.slice.communication import Communications, Tally
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.records import CollectiveKind, CollectiveRun, DeviceClass, SliceRun
from systolic.simulator.slice.run import DevicesRun
from systolic.simulator.slice.setup import SliceSetup

OneDevice = Callable[[Sequence[CoreRun], tuple[SparseCoreRun, ...]], SimulatedRun]


def slice_run(
    run: DevicesRun, where: SliceSetup, facts: SliceFacts, chip: Chip, kernels: Set[str], one_device: OneDevice
) -> SliceRun:
    classes = _classes(run, one_device)
    slowest = max(classes, key=lambda device_class: device_class.run.cycles)
    collectives = _collectives(slowest.run, run.communications[slowest.devices[0]], facts, kernels)
    run_of_slice = SliceRun(
        chip=chip.name,
        topology=where.shape.name,
        clock_hz=chip.machine.clock_hz,
        assignment=where.assignment,
        way=run.way,
        why_all=run.why_all,
        classes=classes,
        links=run.links,
        collectives=collectives,
        link_bytes_per_s=where.shape.links.bytes_per_s,
        flags=dict(chip.compiler_flags),
        assumptions=slowest.run.assumptions,
    )
    return replace(run_of_slice, error=time_error(chip, run_of_slice.traits))


def alone(run: SimulatedRun, shape: SliceShape) -> SliceRun:
    """Return the record of a slice of one device."""
    return SliceRun(
        chip=run.chip,
        topology=shape.name,
        clock_hz=run.clock_hz,
        assignment=(0,),
        way="all devices",
        classes=(DeviceClass(devices=(0,), run=run),),
        links=(),
        collectives=(),
        link_bytes_per_s=shape.links.bytes_per_s,
        flags=run.flags,
        assumptions=run.assumptions,
        error=run.error,
    )


def _classes(run: DevicesRun, one_device: OneDevice) -> tuple[DeviceClass, ...]:
    """Group devices whose cores did exactly the same."""
    result: list[tuple[list[int], Sequence[CoreRun], tuple[SparseCoreRun, ...]]] = []
    by_cycles: dict[tuple[int, ...], list[int]] = {}
    for number, (cores, sparse_cores) in enumerate(zip(run.devices, run.sparse_cores, strict=True)):
        alike = by_cycles.setdefault(tuple(core.cycles for core in cores), [])
        same = next((number for number in alike if result[number][1:] == (cores, sparse_cores)), None)
        if same is None:
            alike.append(len(result))
            result.append(([number], cores, sparse_cores))
        else:
            result[same][0].append(number)
    return tuple(
        DeviceClass(devices=tuple(devices), run=one_device(cores, sparse_cores))
        for devices, cores, sparse_cores in result
    )


def _collectives(
    device: SimulatedRun, communications: Sequence[Communications], facts: SliceFacts, kernels: Set[str]
) -> tuple[CollectiveRun, ...]:
    """Return the communications of one device; one in an operation that does nothing else is exposed as a whole."""
    tallies: dict[str, list[Tally]] = {}
    for core in communications:
        for label, tally in core.finished().items():
            tallies.setdefault(label, []).append(tally)
    ops: dict[str, OpRun] = {}
    for op in sorted((op for core in device.cores for op in core.ops), key=lambda op: op.cycles):
        ops[op.name] = op
    result = []
    for label, core_tallies in tallies.items():
        tally = max(core_tallies, key=lambda tally: (tally.sent_bytes, tally.cycles))
        op, collective = ops.get(label), facts.hlo.collectives.get(label)
        alone = op is not None and collective is not None and not collective.fused
        if collective is not None and collective.ends_later:
            op = None  # it only begins the communication
        cycles = op.cycles if op is not None else tally.cycles
        result.append(
            CollectiveRun(
                name=label or "collective-permute",
                kind=_kind(label, tally, facts, kernels),
                calls=op.calls if op is not None else tally.calls,
                sent_bytes=sum(core_tally.sent_bytes for core_tally in core_tallies),
                begin_cycles=op.begin_cycles if op is not None else tally.begin,
                end_cycles=op.end_cycles if op is not None else tally.end,
                cycles=cycles,
                exposed_cycles=cycles if alone else min(cycles, tally.waited_cycles + tally.issued_cycles),
                links=tuple(sorted(set().union(*(core_tally.axes for core_tally in core_tallies)))),
            )
        )
    return tuple(sorted(result, key=lambda collective: collective.begin_cycles))


def _kind(label: str, tally: Tally, facts: SliceFacts, kernels: Set[str]) -> CollectiveKind:
    collective = facts.hlo.collectives.get(label)
    if collective is not None:
        return collective.kind
    if not tally.copies:
        return "barrier"
    return "pallas" if label in kernels else "collective-permute"
