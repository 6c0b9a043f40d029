"""v4's BarnaCores, which carry XLA's asynchronous all-gathers around a ring of devices.

No listing has their programs. What a TensorCore writes to their flags says what they carry, and they signal it when
they are done. In between, shards are assumed to travel both ways around the ring, each passed on when it has arrived,
and the BarnaCores' own instructions to take no time. No measurement of such an all-gather alone is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.sync_flags import FLAG_MASK
from systolic.simulator.other_devices import OtherDevices, Shard

# In the address of a BarnaCore's flag: its number on the chip.
_NUMBER_BIT, _NUMBER_MASK = 14, 3
# Flags that say what a BarnaCore has to carry, by their numbers in listings. The last one starts it.
_SHARDS, _GRANULES, _NEXT, _PREVIOUS, _SECOND_RING, _LAST = 4, 6, 7, 9, 21, 16
# A TensorCore waits for the flags from this number on, one for each BarnaCore.
_FIRST_DONE = 1


@dataclass(slots=True, kw_only=True)
class _Gather:
    """An all-gather under way."""

    core: int  # the TensorCore that started it
    program: str
    shards: tuple[Shard, Shard]  # that go backward, and forward
    to_send: list[int]  # how many of each
    under_way: int  # how many have to leave, and to arrive
    time: float  # when the last one of those before has left or arrived


@dataclass(slots=True)
class _BarnaCore:
    number: int
    flags: dict[int, Any] = field(default_factory=dict)
    space: str = ""  # the memory of the shards
    gather: _Gather | None = None
    early: list[tuple[bool, float]] = field(default_factory=list)  # shards that came before the all-gather began


class BarnaCores:
    """The BarnaCores of one device."""

    def __init__(self, dma: DmaEngine, granule_bytes: int, others: OtherDevices | None) -> None:
        self._dma = dma
        self._granule_bytes = granule_bytes
        self._others = others
        self._cores = [_BarnaCore(number) for number in range(_NUMBER_MASK + 1)]

    def set(self, core: int, program: str, time: float, address: int, value: Any, space: str) -> None:
        """Let a TensorCore set a flag of a BarnaCore; `space` is the memory to which the value points, if it does."""
        barna_core = self._cores[address >> _NUMBER_BIT & _NUMBER_MASK]
        barna_core.space = space or barna_core.space
        barna_core.flags[address & FLAG_MASK] = value
        if address & FLAG_MASK == _LAST:
            self._begin(barna_core, core, program, time)

    def _begin(self, barna_core: _BarnaCore, core: int, program: str, time: float) -> None:
        flags, barna_core.flags = barna_core.flags, {}
        if flags.get(_SECOND_RING) or not {_SHARDS, _GRANULES, _NEXT, _PREVIOUS} <= flags.keys():
            raise SimulationError("an all-gather of BarnaCores that is not around one ring")
        if barna_core.gather is not None:
            raise SimulationError("an all-gather of a BarnaCore begins before another one has ended")
        backward, forward = (
            Shard(
                barna_core=barna_core.number,
                forward=is_forward,
                chip=flags[_NEXT if is_forward else _PREVIOUS],
                label=program,
                size_bytes=flags[_GRANULES] * self._granule_bytes,
                space=barna_core.space,
            )
            for is_forward in (False, True)
        )
        others = flags[_SHARDS] - 1
        barna_core.gather = _Gather(
            core=core,
            program=program,
            shards=(backward, forward),
            to_send=[others // 2, others - others // 2],
            under_way=2 * others,
            time=time,
        )
        for is_forward in (True, False):
            self._send(barna_core.gather, time, is_forward=is_forward)
        early, barna_core.early = barna_core.early, []
        for is_forward, arrived in early:
            self.arrived(barna_core.number, max(time, arrived), is_forward=is_forward)

    def _send(self, gather: _Gather, time: float, *, is_forward: bool) -> None:
        if gather.to_send[is_forward]:
            gather.to_send[is_forward] -= 1
            assert self._others is not None
            self._others.pass_on(time, gather.shards[is_forward])

    def arrived(self, number: int, time: float, *, is_forward: bool) -> None:
        """Pass on a shard that has arrived."""
        gather = self._cores[number].gather
        if gather is None:
            self._cores[number].early.append((is_forward, time))
            return
        self._send(gather, time, is_forward=is_forward)
        self.left(number, time)

    def left(self, number: int, time: float) -> None:
        """Count a shard that has left this device, or arrived here."""
        gather = self._cores[number].gather
        assert gather is not None
        gather.under_way -= 1
        gather.time = max(gather.time, time)
        if not gather.under_way:
            self._cores[number].gather = None
            self._dma.land(gather.core, gather.program, _FIRST_DONE + number, math.ceil(gather.time), 1, gather.program)
