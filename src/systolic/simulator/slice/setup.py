"""The place of a program on a slice, and each device's initial contents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from systolic.chips import SliceError, SliceShape
from systolic.simulator.device_setup import DeviceSetup, OperandWords
from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.lanes import DivergedError
from systolic.simulator.hardware.memory import Contents, Words
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.identity import Identity, assignment_at, constants_from
from systolic.simulator.slice.route_tables import RouteTables
from systolic.simulator.slice.routes import Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSetup:
    """A slice, and where on it the program runs."""

    shape: SliceShape
    assignment: tuple[int, ...]  # device ids by partition
    routes: Routes  # its devices' routes
    route_tables: RouteTables | None  # how its chips name each other; None: by number

    @staticmethod
    def of(shape: SliceShape, assignment: Sequence[int], facts: SliceFacts) -> SliceSetup:
        """Check that a program can run there, and return the setup.

        Raises:
          SliceError: the devices are not all devices of the slice, each once, or their number is not the program's.
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
        return constants_from(self.shape.chip.machine.hbm_pointer_bytes)

    @property
    def assignment_at(self) -> int:
        return assignment_at(self.shape.chip.machine.hbm_pointer_bytes)

    def identities(self, facts: SliceFacts) -> list[list[dict[int, int]]]:
        """Return each device's identifying words by address, for each of its cores."""
        partitions = {device: partition for partition, device in enumerate(self.assignment)}
        cores = self.shape.chip.cores_per_device
        tables = None if self.route_tables is None else tuple(self.route_tables.words())
        result = []
        for device in self.shape.devices:
            identity = Identity(
                chip=device.chip,
                partition=partitions[device.id],
                first_core=device.core * cores,
                constants=self.constants_from,
                assignment=self.assignment_at,
            )
            routes = {} if tables is None else tables[device.chip]
            result.append(
                [
                    {**routes, **{address: identity.value(word, core) for address, word in facts.words.items()}}
                    for core in range(cores)
                ]
            )
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContents:
    """Known contents of each partition's arguments and operands; see `PreparedProgram.run_slice`."""

    parameters: tuple[Sequence[Words | Unknown], ...]
    operand_words: tuple[OperandWords, ...]

    def of(self, partition: int, setup: DeviceSetup) -> DeviceSetup:
        """Return the setup of a device with this partition."""
        words = self.operand_words[partition] if self.operand_words else setup.operand_words
        return replace(setup, parameters=self.parameters[partition], operand_words=words)

    def of_all(self, setup: DeviceSetup) -> DeviceSetup:
        """Return the setup of a device for all; raise DivergedError if known contents differ between devices."""
        first = self.of(0, setup)
        for number, partition in enumerate(self.parameters):
            for index, words in enumerate(partition):
                parameter = first.parameters[index]
                if words is not parameter and not (isinstance(words, Unknown) and isinstance(parameter, Unknown)):
                    raise DivergedError(
                        f"argument {index} holds something else on partition {number} than on the first"
                    )
        if any(word is not self.operand_words[0] for word in self.operand_words):
            return replace(first, operand_words=self._operands_of_all)
        return first

    def _operands_of_all(self, name: str, call: int, index: int) -> Contents | None:
        result = [word(name, call, index) for word in self.operand_words]
        if all(words is None for words in result):
            return None
        if all(words is result[0] for words in result):
            return result[0]
        if any(words is None for words in result):
            raise DivergedError(f"operand {index} of {name} is known on some partitions alone")

        def words() -> Words | Unknown:
            contents = [words for words in result if words is not None]
            first = contents[0]()
            if isinstance(first, Unknown):  # to find out that it is not known on the others either may take minutes
                return first
            if any(not isinstance(value := words(), Unknown) and value != first for words in contents[1:]):
                raise DivergedError(f"operand {index} of {name} holds something else on other partitions")
            return first

        return functools.cache(words)


def with_tables(setup: DeviceSetup, where: SliceSetup, facts: SliceFacts) -> DeviceSetup:
    """Add the program's constants and the table of the assignment to HBM."""
    constants = facts.constants.in_hbm(where.constants_from)
    return replace(setup, tables={**constants, where.assignment_at: list(where.assignment)})
