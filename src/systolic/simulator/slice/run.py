"""Runs a program on all devices of a slice."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from systolic.chips import SliceError, SliceShape
from systolic.simulator.core import DeviceSetup, OperandWords
from systolic.simulator.errors import SimulationError, TooManyCopiesError
from systolic.simulator.hardware.lanes import DivergedError, joined
from systolic.simulator.hardware.memory import Contents, Words
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.records import CoreRun, SparseCoreRun
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.addresses import Addresses
from systolic.simulator.slice.communication import Communications
from systolic.simulator.slice.device import Device
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.identity import Identity, assignment_at, constants_from
from systolic.simulator.slice.network import MOST_COPIES, Network, too_many_copies
from systolic.simulator.slice.one_for_all import OneForAll, PatternNetwork
from systolic.simulator.slice.records import LinkRun, Way
from systolic.simulator.slice.route_tables import RouteTables
from systolic.simulator.slice.routes import Routes
from systolic.simulator.slice.surroundings import AllDevices
from systolic.simulator.slice.tables import check_tables

# Devices of a slice of which all are executed where one that is as slow as the slowest could stand for them.
MOST_APART = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSetup:
    """A slice, and where on it the program runs.

    Attributes:
      assignment: device ids by partition.
      routes: between its devices.
      route_tables: by which its chips name each other; None: by number.
    """

    shape: SliceShape
    assignment: tuple[int, ...]
    routes: Routes
    route_tables: RouteTables | None

    @staticmethod
    def of(shape: SliceShape, assignment: Sequence[int], facts: SliceFacts) -> SliceSetup:
        """Checks that a program can run there.

        Raises:
          SliceError: the devices are not all devices of the slice, each once, or not as many as the program is for.
          SimulationError: the program is made of replicas.
        """
        count = len(shape.devices)
        if sorted(assignment) != list(range(count)):
            raise SliceError(
                f"a program runs on all {count} devices of a slice {shape.name}, each once; not on {assignment}"
            )
        if facts.hlo.replicas != 1:
            raise SimulationError(f"a program of {facts.hlo.replicas} replicas; only partitions are simulated")
        if facts.hlo.partitions != count:
            raise SliceError(
                f"the program is for {facts.hlo.partitions} devices, and {shape.chip.name}:{shape.name} has {count}"
            )
        tables = RouteTables.of(shape, assignment, facts)
        return SliceSetup(shape=shape, assignment=tuple(assignment), routes=Routes(shape), route_tables=tables)

    @property
    def constants_from(self) -> int:
        """Where the program's constants begin in HBM."""
        return constants_from(self.shape.chip.machine.hbm_pointer_bytes)

    @property
    def assignment_at(self) -> int:
        """Where the table of the assignment lies in HBM."""
        return assignment_at(self.shape.chip.machine.hbm_pointer_bytes)

    def identities(self, facts: SliceFacts) -> list[list[dict[int, int]]]:
        """Words by which each device knows which it is, by address, for each of its cores."""
        partitions = {device: partition for partition, device in enumerate(self.assignment)}
        cores = self.shape.chip.cores_per_device
        tables = None if self.route_tables is None else tuple(self.route_tables.words())
        found = []
        for device in self.shape.devices:
            known = Identity(
                chip=device.chip,
                partition=partitions[device.id],
                first_core=device.core * cores,
                constants=self.constants_from,
                assignment=self.assignment_at,
            )
            routes = {} if tables is None else tables[device.chip]
            found.append(
                [
                    {**routes, **{address: known.value(word, core) for address, word in facts.words.items()}}
                    for core in range(cores)
                ]
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContents:
    """What is known of each partition's arguments and operands; see `PreparedProgram.run_slice`."""

    parameters: tuple[Sequence[Words | Unknown], ...]
    operand_words: tuple[OperandWords, ...]

    def of(self, partition: int, setup: DeviceSetup) -> DeviceSetup:
        """The setup of a device that has this partition."""
        given = self.operand_words[partition] if self.operand_words else setup.operand_words
        return replace(setup, parameters=self.parameters[partition], operand_words=given)

    def of_all(self, setup: DeviceSetup) -> DeviceSetup:
        """The setup of a device that stands for all.

        Raises:
          DivergedError: something is known that is not the same on all.
        """
        first = self.of(0, setup)
        for number, partition in enumerate(self.parameters):
            for index, words in enumerate(partition):
                known = first.parameters[index]
                if words is not known and not (isinstance(words, Unknown) and isinstance(known, Unknown)):
                    raise DivergedError(
                        f"argument {index} holds something else on partition {number} than on the first"
                    )
        if any(each is not self.operand_words[0] for each in self.operand_words):
            return replace(first, operand_words=self._operands_of_all)
        return first

    def _operands_of_all(self, name: str, call: int, index: int) -> Contents | None:
        found = [each(name, call, index) for each in self.operand_words]
        if all(each is None for each in found):
            return None
        if all(each is found[0] for each in found):
            return found[0]
        if any(each is None for each in found):
            raise DivergedError(f"operand {index} of {name} is known on some partitions alone")

        def words() -> Words | Unknown:
            known = [each() for each in found if each is not None]
            if any(each != known[0] for each in known if not isinstance(each, Unknown)):
                raise DivergedError(f"operand {index} of {name} holds something else on other partitions")
            return known[0]

        return functools.cache(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesRun:
    """What all devices did: of each, the cores, and what was sent."""

    devices: tuple[tuple[CoreRun, ...], ...]  # by id
    sparse_cores: tuple[tuple[SparseCoreRun, ...], ...]
    communications: tuple[tuple[Communications, ...], ...]  # by id, of each core
    links: tuple[LinkRun, ...]
    iterations: int
    way: Way

    @property
    def cores(self) -> tuple[CoreRun, ...]:
        """The cores of all devices."""
        return tuple(core for cores in self.devices for core in cores)

    @property
    def cycles(self) -> int:
        """Cycles of the core that ends last."""
        return max(core.cycles for core in self.cores)


def run_devices(
    setup: DeviceSetup,
    where: SliceSetup,
    facts: SliceFacts,
    given: PartitionContents,
    spans: int,
    *,
    one_for_all: bool,
) -> DevicesRun:
    """Runs the program: if wanted one device for all, where all take the same time; else all of them together.

    Where all of a few devices would send too many copies, one stands for them after all, as slow as the slowest.

    Raises:
      SimulationError: see `PreparedProgram.run_slice`.
    """
    if where.route_tables is None:
        check_tables(facts, where.assignment)

    def every() -> DevicesRun:
        return _run_all(setup, where, facts, given, spans)

    def one(*, slowest_counts: bool) -> DevicesRun:
        return _run_one_for_all(known, where, facts, spans, slowest_counts=slowest_counts)

    if not one_for_all or setup.sparse_programs:
        return every()
    # To execute every one of many devices would take hours.
    alike = len(where.assignment) > MOST_APART
    try:
        known = with_tables(given.of_all(setup), where, facts)
    except DivergedError:
        return every()
    try:
        with suppress(DivergedError):
            return one(slowest_counts=alike)
        return every()
    except TooManyCopiesError:
        if not alike:
            with suppress(DivergedError):
                return one(slowest_counts=True)
        raise


def _run_all(
    setup: DeviceSetup,
    where: SliceSetup,
    facts: SliceFacts,
    given: PartitionContents,
    spans: int,
) -> DevicesRun:
    def changes() -> int:
        return sum(device.sparse_cores.changes for device in devices) if setup.sparse_programs else 0

    schedule = Schedule(changes, patient=True)
    clock_hz = setup.chip.machine.clock_hz
    devices: list[Device] = []
    network = Network(where.routes, schedule, clock_hz, spans)
    around = AllDevices(
        schedule=schedule,
        clock_hz=clock_hz,
        routes=where.routes,
        network=network,
        addresses=Addresses(where.shape, where.route_tables),
        devices=devices,
    )
    partitions = {device: partition for partition, device in enumerate(where.assignment)}
    for number, words in enumerate(where.identities(facts)):
        of_device = with_tables(given.of(partitions[number], setup), where, facts)
        devices.append(Device(of_device, number, words, around, spans))
    for device in devices:
        device.start()
    ends = iter(schedule.run())
    runs = [tuple(core.result(int(next(ends))) for core in device.cores) for device in devices]
    return DevicesRun(
        devices=tuple(runs),
        sparse_cores=tuple(device.sparse_cores.results() for device in devices),
        communications=tuple(tuple(device.communications) for device in devices),
        links=network.results(),
        iterations=max(core.iterations for device in devices for core in device.cores),
        way="all devices",
    )


def _run_one_for_all(
    setup: DeviceSetup, where: SliceSetup, facts: SliceFacts, spans: int, *, slowest_counts: bool
) -> DevicesRun:
    """Runs one device that stands for all.

    Args:
      slowest_counts: let the slowest count for all where devices differ at a barrier of all, or their routes.

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
        slowest_counts=slowest_counts,
    )
    words = [
        {address: joined([each[core][address] for each in identities]) for address in known}
        for core, known in enumerate(identities[0])
    ]
    device = Device(setup, 0, words, around, spans)
    device.start()
    try:
        ends = schedule.run()
    except DivergedError as error:
        if network.copies * count > MOST_COPIES:  # before hours of work
            raise too_many_copies(network.copies * count, f" ({error})") from error
        raise
    run = tuple(core.result(int(end)) for core, end in zip(device.cores, ends, strict=True))
    differed = around.differed or network.differed
    return DevicesRun(
        devices=(run,) * count,
        sparse_cores=((),) * count,
        communications=(tuple(device.communications),) * count,
        links=network.results(),
        iterations=max(core.iterations for core in device.cores),
        way="one device for all, as slow as the slowest" if differed else "one device for all",
    )


def with_tables(setup: DeviceSetup, where: SliceSetup, facts: SliceFacts) -> DeviceSetup:
    """Lets HBM hold the program's constants, and the table of the assignment."""
    constants = facts.constants.in_hbm(where.constants_from)
    return replace(setup, tables={**constants, where.assignment_at: list(where.assignment)})
