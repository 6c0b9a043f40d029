"""Run a program on all devices of a slice."""

from __future__ import annotations

from dataclasses import dataclass, replace

from systolic.simulator.core_records import CoreRun, SparseCoreRun
from systolic.simulator.device_setup import DeviceSetup, rounds_of
from systolic.simulator.errors import TooManyCopiesError
from systolic.simulator.hardware.lanes import DivergedError
from systolic.simulator.hardware.words import joined
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.addresses import Addresses
from systolic.simulator.slice.communication import Communications
from systolic.simulator.slice.device import Device
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.network import MAX_COPIES, MAX_COPIES_APART, Network, too_many_copies
from systolic.simulator.slice.one_for_all import OneForAll, PatternNetwork
from systolic.simulator.slice.records import LinkRun, Way
from systolic.simulator.slice.schedules import busiest_rows
from systolic.simulator.slice.setup import PartitionContents, SliceSetup, with_tables
from systolic.simulator.slice.surroundings import AllDevices
from systolic.simulator.slice.tables import check_tables

# Up to this number of devices all are executed, even if one as slow as the slowest could represent them. With
# SparseCores up to twice as many: the slowest one's sum over 32 devices takes 1.9 % longer than that of all.
MAX_APART = 16
AS_THE_SLOWEST: Way = "one device for all, as slow as the slowest"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesRun:
    """The runs of all devices: the cores of each, and the link traffic."""

    devices: tuple[tuple[CoreRun, ...], ...]  # by id
    sparse_cores: tuple[tuple[SparseCoreRun, ...], ...]
    communications: tuple[tuple[Communications, ...], ...]  # by id, of each core
    links: tuple[LinkRun, ...]
    iterations: int
    way: Way
    why_all: str = ""  # why one device could not represent all, if that was tried
    prefetch_cycles: int = 0  # that the first call takes longer

    @property
    def cores(self) -> tuple[CoreRun, ...]:
        return tuple(core for cores in self.devices for core in cores)


def run_devices(
    setup: DeviceSetup,
    where: SliceSetup,
    facts: SliceFacts,
    contents: PartitionContents,
    spans: int,
    *,
    one_for_all: bool,
) -> DevicesRun:
    """Run the program: one device for all if requested and all take the same time; else all of them together.

    If a few devices would send too many copies, one represents them anyway, as slow as the slowest.

    Raises:
      SimulationError: see `PreparedProgram.run_slice`.
    """
    if where.route_tables is None:
        check_tables(facts, where.assignment)

    def run_all(why: str = "", most_copies: int = MAX_COPIES) -> DevicesRun:
        return replace(_run_all(setup, where, facts, contents, spans, most_copies), why_all=why)

    def run_one(*, slowest_counts: bool) -> DevicesRun:
        rows = busiest_rows(facts) if slowest_counts else {}
        run = _run_one_for_all(identity, where, facts, spans, rows, slowest_counts=slowest_counts)
        return replace(run, way=AS_THE_SLOWEST) if rows else run

    if not one_for_all:
        return run_all()
    # To execute every one of many devices would take hours.
    alike = len(where.assignment) > MAX_APART * (2 if setup.sparse.programs else 1)
    try:
        identity = with_tables(contents.of_all(setup), where, facts)
    except DivergedError as error:
        return run_all(str(error))
    try:
        try:
            return run_one(slowest_counts=alike)
        except DivergedError as error:
            return run_all(str(error))
    except TooManyCopiesError:
        if alike:
            raise
    try:
        return run_one(slowest_counts=True)
    except DivergedError as error:
        return run_all(str(error), MAX_COPIES_APART)


def _run_all(
    setup: DeviceSetup,
    where: SliceSetup,
    facts: SliceFacts,
    contents: PartitionContents,
    spans: int,
    most_copies: int,
) -> DevicesRun:
    schedule = Schedule(patient=True)
    clock_hz = setup.chip.machine.clock_hz
    devices: list[Device] = []
    network = Network(where.routes, schedule, clock_hz, spans, most_copies=most_copies)
    around = AllDevices(
        schedule=schedule,
        clock_hz=clock_hz,
        routes=where.routes,
        network=network,
        addresses=Addresses(where.shape, where.route_tables),
        devices=devices,
    )
    rounds = rounds_of(setup, schedule, spans, network)
    partitions = {device: partition for partition, device in enumerate(where.assignment)}
    for number, words in enumerate(where.identities(facts)):
        of_device = with_tables(contents.of(partitions[number], setup), where, facts)
        devices.append(Device(of_device, number, words, around, spans, rounds))
    for device in devices:
        device.start()
    ends = iter(schedule.run())
    runs = [tuple(core.result(int(next(ends))) for core in device.cores) for device in devices]
    return DevicesRun(
        devices=tuple(runs),
        sparse_cores=tuple(device.sparse_cores.results() for device in devices),
        communications=tuple(tuple(device.communications) for device in devices),
        links=network.results(),
        iterations=max(device.iterations for device in devices),
        way="all devices",
    )


def _run_one_for_all(
    setup: DeviceSetup,
    where: SliceSetup,
    facts: SliceFacts,
    spans: int,
    rows: dict[int, int],
    *,
    slowest_counts: bool,
) -> DevicesRun:
    """Run one device that represents all.

    Args:
      rows: words that are the same on all devices, by address.
      slowest_counts: time all as the slowest if devices differ at a barrier of all, or in their routes.

    Raises:
      DivergedError: it cannot.
      TooManyCopiesError: it cannot, and all devices would send more copies than are simulated.
      SimulationError: as all of them would.
    """
    schedule = Schedule(patient=True)
    clock_hz = setup.chip.machine.clock_hz
    identities = where.identities(facts)
    count = len(identities)
    network = PatternNetwork(where.routes, schedule, clock_hz, spans, slowest_counts=slowest_counts)
    around = OneForAll(
        schedule=schedule,
        clock_hz=clock_hz,
        routes=where.routes,
        network=network,
        addresses=Addresses(where.shape, where.route_tables),
        count=count,
        groups={
            name: [[where.assignment[partition] for partition in group] for group in collective.groups]
            for name, collective in facts.hlo.collectives.items()
        },
        slowest_counts=slowest_counts,
    )
    words = [
        {address: joined([identity[core][address] for identity in identities]) for address in words} | rows
        for core, words in enumerate(identities[0])
    ]
    device = Device(setup, 0, words, around, spans, rounds_of(setup, schedule, spans, network))
    device.start()
    try:
        ends = schedule.run()
    except DivergedError as error:
        if network.copies * count > MAX_COPIES:  # before hours of work
            raise too_many_copies(network.copies * count, MAX_COPIES, f" ({error})") from error
        raise
    run = tuple(core.result(int(end)) for core, end in zip(device.cores, ends, strict=False))  # those of tasks follow
    differed = around.differed or network.differed
    return DevicesRun(
        devices=(run,) * count,
        sparse_cores=(device.sparse_cores.results(),) * count,
        communications=(tuple(device.communications),) * count,
        links=network.results(),
        iterations=device.iterations,
        way=AS_THE_SLOWEST if differed else "one device for all",
    )
