"""One device: its cores, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from systolic.simulator.barna_cores import BarnaCores
from systolic.simulator.core import Core
from systolic.simulator.core_parts import DeviceParts
from systolic.simulator.device_setup import DeviceSetup
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.mailboxes import Mailboxes
from systolic.simulator.meeting import Meeting
from systolic.simulator.other_devices import OtherDevices
from systolic.simulator.rounds.repeated import RepeatedRounds
from systolic.simulator.schedule import Schedule
from systolic.simulator.sparse_core.device import SparseCores

_NO_WORDS: Mapping[int, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """The cores of a device, ready to run, and what they share."""

    parts: DeviceParts
    cores: tuple[Core, ...]

    @property
    def iterations(self) -> int:
        """Iterations of loops on the busiest core, or for each tile of the SparseCores."""
        return max(*(core.iterations for core in self.cores), self.parts.sparse_cores.iterations)

    @staticmethod
    def of(
        setup: DeviceSetup,
        schedule: Schedule,
        spans: int,
        *,
        others: OtherDevices | None = None,
        identities: Sequence[Mapping[int, Any]] = (),
        rounds: RepeatedRounds | None = None,
    ) -> DeviceModel:
        """Build the cores of a device.

        `spans` are kept on each core's timeline, `others` are the other devices of a slice, and `identities` each
        core's words of scalar memory that identify its device; may be empty. `rounds` are of all devices' loops; None:
        all are executed.
        """
        chip = setup.chip
        numbers = range(chip.cores_per_device)
        timelines = [Timeline(spans) for _ in numbers] if spans else None
        dma = DmaEngine(chip.machine, len(numbers), timelines, schedule, host_bytes_per_s=chip.host_bytes_per_s)
        sparse = chip.sparse_core
        tiles = sparse.tiles_per_core * sparse.cores_per_device if sparse is not None else 1
        sparse_cores = SparseCores(
            chip,
            setup.sparse,
            dma,
            schedule,
            IterationBudget(tiles * setup.max_iterations),  # every tile goes through the loops of a program
            spans,
            others,
            setup.tables,
        )
        mailboxes = Mailboxes(len(numbers), schedule)
        parts = DeviceParts(
            dma=dma,
            mailboxes=mailboxes,
            sparse_cores=sparse_cores,
            barna_cores=BarnaCores(dma, chip.machine.granule_bytes, others),
            meeting=Meeting(len(numbers)),
            others=others,
            rounds=rounds,
        )
        cores = tuple(
            Core(
                setup,
                parts,
                number,
                timelines[number] if timelines else None,
                identities[number] if identities else _NO_WORDS,
            )
            for number in numbers
        )
        for core in cores[1:]:
            core.memory.share("hbm", cores[0].memory)
        return DeviceModel(parts=parts, cores=cores)
