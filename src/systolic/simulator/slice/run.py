"""Runs a program on all devices of a slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from systolic.chips import SliceError, SliceShape
from systolic.simulator.core import DeviceSetup, OperandWords
from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.memory import Contents, Words
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.records import CoreRun, SparseCoreRun
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.addresses import Addresses
from systolic.simulator.slice.communication import Communications
from systolic.simulator.slice.device import Device, Surroundings
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.identity import ASSIGNMENT_AT, Identity
from systolic.simulator.slice.network import Network
from systolic.simulator.slice.records import LinkRun, Way
from systolic.simulator.slice.routes import Routes
from systolic.simulator.slice.tables import neighbour_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSetup:
    """A slice, and where on it the program runs.

    Attributes:
      assignment: device ids by partition.
      routes: between its devices.
    """

    shape: SliceShape
    assignment: tuple[int, ...]
    routes: Routes

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
        return SliceSetup(shape=shape, assignment=tuple(assignment), routes=Routes(shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContents:
    """What is known of each partition's arguments and operands; see `PreparedProgram.run_slice`."""

    parameters: tuple[Sequence[Words | Unknown], ...]
    operand_words: tuple[OperandWords, ...]

    def of(self, partition: int, setup: DeviceSetup) -> DeviceSetup:
        """The setup of a device that has this partition."""
        given = self.operand_words[partition] if self.operand_words else setup.operand_words
        return replace(setup, parameters=self.parameters[partition], operand_words=given)


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
    setup: DeviceSetup, where: SliceSetup, facts: SliceFacts, given: PartitionContents, spans: int
) -> DevicesRun:
    """Runs the program on all devices together.

    Raises:
      SimulationError: see `PreparedProgram.run_slice`.
    """
    chip = setup.chip

    def changes() -> int:
        return sum(device.sparse_cores.changes for device in devices) if setup.sparse_programs else 0

    schedule = Schedule(changes, patient=True)
    devices: list[Device] = []
    around = Surroundings(
        schedule=schedule,
        routes=where.routes,
        network=Network(where.routes, schedule, chip.machine.clock_hz, spans),
        addresses=Addresses(where.shape),
        devices=devices,
        clock_hz=chip.machine.clock_hz,
    )
    tables = neighbour_tables(facts, where.assignment)
    partitions = {device: partition for partition, device in enumerate(where.assignment)}
    for device in where.shape.devices:
        identity = Identity(
            chip=device.chip, partition=partitions[device.id], first_core=device.core * chip.cores_per_device
        )
        words = [
            {address: identity.value(word, core) for address, word in facts.words.items()}
            for core in range(chip.cores_per_device)
        ]
        of_device = with_tables(given.of(partitions[device.id], setup), where, tables)
        devices.append(Device(of_device, device.id, words, around, spans))
    for device in devices:
        device.start()
    ends = schedule.run()
    cores = [core for device in devices for core in device.cores]
    runs = iter([core.result(int(end)) for core, end in zip(cores, ends, strict=False)])
    return DevicesRun(
        devices=tuple(tuple(next(runs) for _ in device.cores) for device in devices),
        sparse_cores=tuple(device.sparse_cores.results() for device in devices),
        communications=tuple(tuple(device.communications) for device in devices),
        links=around.network.results(),
        iterations=max(core.iterations for core in cores),
        way="all devices",
    )


def with_tables(setup: DeviceSetup, where: SliceSetup, tables: Mapping[tuple[str, int], Sequence[int]]) -> DeviceSetup:
    """Lets constants hold the tables of neighbours, and HBM the table of the assignment."""
    given = setup.operand_words

    def operand_words(name: str, call: int, index: int) -> Contents | None:
        table = tables.get((name, index))
        return given(name, call, index) if table is None else lambda: table

    return replace(setup, operand_words=operand_words, tables={ASSIGNMENT_AT: list(where.assignment)})
