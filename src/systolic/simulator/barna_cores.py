"""v4's BarnaCores, which carry XLA's asynchronous all-gathers around a ring of devices.

No listing has their programs. What a TensorCore writes to their flags says what they carry, and they signal it when
they are done. In between, shards are assumed to travel both ways around the ring, each passed on when it has arrived,
and the BarnaCores' own instructions to take no time. No measurement of such an all-gather alone is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.sync_flags import FLAG_MASK
from systolic.simulator.other_devices import OtherDevices, Shard

_NUMBER, _NUMBERS = 14, 3  # of the BarnaCore on its chip, in the address of its flag
# Flags of a BarnaCore that say what it has to carry, as listings set them. The last one starts it.
_SHARDS, _GRANULES, _NEXT, _PREVIOUS, _SECOND_RING, _LAST = 4, 6, 7, 9, 21, 16


@dataclass(slots=True, kw_only=True)
class _Gather:
    """An all-gather under way."""

    core: int  # the TensorCore that waits for it
    program: str
    forward: Shard
    backward: Shard
    to_send: list[int]  # backward, forward
    under_way: int  # shards that have to leave, and to arrive
    time: float  # when the last one of those before has left or arrived


class BarnaCores:
    """The BarnaCores of one device."""

    def __init__(self, dma: DmaEngine, granule_bytes: int, others: OtherDevices | None) -> None:
        self._dma = dma
        self._granule_bytes = granule_bytes
        self._others = others
        self._flags: dict[tuple[int, int], Any] = {}  # by BarnaCore and number
        self._gathers: dict[int, _Gather] = {}
        self._early: dict[int, list[tuple[bool, float]]] = {}  # shards that arrived before their all-gather began

    def set(self, core: int, program: str, time: float, address: int, value: Any, space: str) -> None:
        """Let a TensorCore set a flag of a BarnaCore; `space` is the memory to which the value points, if it does."""
        number, flag = address >> _NUMBER & _NUMBERS, address & FLAG_MASK
        if space:
            self._flags[number, -1] = space
        self._flags[number, flag] = value
        if flag == _LAST:
            self._begin(number, core, program, time)

    def _begin(self, number: int, core: int, program: str, time: float) -> None:
        told = {flag: value for (barna_core, flag), value in self._flags.items() if barna_core == number}
        if told.get(_SECOND_RING) or not {_SHARDS, _GRANULES, _NEXT, _PREVIOUS, -1} <= told.keys():
            raise SimulationError("an all-gather of BarnaCores that is not around one ring")
        if number in self._gathers:
            raise SimulationError("an all-gather of a BarnaCore begins before another one has ended")
        shards = told[_SHARDS]
        forward, backward = (
            Shard(
                barna_core=number,
                forward=is_forward,
                chip=told[_NEXT if is_forward else _PREVIOUS],
                label=program,
                size_bytes=told[_GRANULES] * self._granule_bytes,
                space=told[-1],
            )
            for is_forward in (True, False)
        )
        self._gathers[number] = gather = _Gather(
            core=core,
            program=program,
            forward=forward,
            backward=backward,
            to_send=[(shards - 1) // 2, shards // 2],
            under_way=2 * (shards - 1),
            time=time,
        )
        for is_forward in (True, False):
            self._send(gather, time, is_forward=is_forward)
        for is_forward, arrived in self._early.pop(number, ()):
            self.arrived(number, max(time, arrived), is_forward=is_forward)

    def _send(self, gather: _Gather, time: float, *, is_forward: bool) -> None:
        if gather.to_send[is_forward]:
            gather.to_send[is_forward] -= 1
            assert self._others is not None
            self._others.pass_on(time, gather.forward if is_forward else gather.backward)

    def left(self, number: int, time: float) -> None:
        """A shard has left this device."""
        gather = self._gathers[number]
        gather.under_way -= 1
        gather.time = max(gather.time, time)
        if not gather.under_way:
            del self._gathers[number]
            # The BarnaCores signal flags 1 to 4.
            self._dma.land(gather.core, gather.program, number + 1, math.ceil(gather.time), 1, gather.program)

    def arrived(self, number: int, time: float, *, is_forward: bool) -> None:
        """A shard has arrived: pass it on."""
        gather = self._gathers.get(number)
        if gather is None:
            self._early.setdefault(number, []).append((is_forward, time))
            return
        self._send(gather, time, is_forward=is_forward)
        self.left(number, time)
