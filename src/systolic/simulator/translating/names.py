"""Give addresses to names in programs: allocations, sync flags, parameters.

The addresses are made up. Only that they do not overlap matters: what a program computes from them ends up in copies
and loads whose places are compared with each other, and with nothing else. Allocations and parameters of all programs
share one space, since the top-level program passes addresses on to what it calls. Addresses in VMEM count rows of 512
bytes, those in HBM what `hbm_pointer_bytes` of the chip says, those in scalar memory words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.sync_flags import FLAG_BITS, NUMBERED_FLAGS, SHARED_FLAGS_FROM

_ALLOCATION_SPAN_BITS = 16
ALLOCATION_SPAN = 1 << _ALLOCATION_SPAN_BITS  # pointers from an allocation's begin to the next one's
# Parameters lie in the upper half of what an address may be that is going to be multiplied by sixteen.
_PARAMETERS_FROM = 1 << 27
_PARAMETERS_TO = 1 << 28

# Numbers between the sync flags of one name and the next, in a called program and in the top-level program.
# If known, the name's number of flags is used.
_FLAG_SPAN = 64
_SHARED_FLAG_SPAN = 8


@dataclass(slots=True)
class Allocations:
    """The number of allocations with an address, over all programs of a run."""

    count: int = 0

    def next_address(self) -> int:
        """Return an address that no other allocation has; raise `SimulationError` after the last one."""
        self.count += 1
        address = self.count << _ALLOCATION_SPAN_BITS
        if address >= _PARAMETERS_FROM:
            address += _PARAMETERS_TO - _PARAMETERS_FROM
        if address >> 32:
            raise SimulationError(f"the program has more than {self.count - 1} allocations")
        return address


def parameter_address(number: int, count: int) -> int:
    """Return a row of 512 bytes in HBM for the begin of parameter `number` of `count`."""
    return _PARAMETERS_FROM + number * ((_PARAMETERS_TO - _PARAMETERS_FROM) // (count + 1))


class Names:
    """Addresses of one program's names.

    Args:
      flags: names of sync flags. Programs pack their numbers into `FLAG_BITS` bits, so these stay small.
      allocations: shared with the other programs of the run.
      shared: the flags are the top-level program's.
      counts: number of flags of a name, if known.
      numbered: flags that have numbers already.
    """

    def __init__(
        self,
        flags: frozenset[str],
        allocations: Allocations,
        *,
        shared: bool,
        numbered: Mapping[str, int],
        counts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._flags = flags
        self._counts = counts
        self._allocations = allocations
        self._span = _SHARED_FLAG_SPAN if shared else _FLAG_SPAN
        self._next_flag = SHARED_FLAGS_FROM if shared else NUMBERED_FLAGS
        self._flags_end = 1 << FLAG_BITS if shared else SHARED_FLAGS_FROM
        self.addresses = dict(numbered)

    def address(self, name: str, offset: int = 0) -> int:
        """Return the address `offset` rows, words or flags into the allocation of that name.

        Raises:
          SimulationError: there are more sync flags than numbers for them.
        """
        if name not in self.addresses:
            if name in self._flags:
                self.addresses[name] = self._flag_number(name)
            else:
                self.addresses[name] = self._allocations.next_address()
        return self.addresses[name] + offset

    def _flag_number(self, name: str) -> int:
        flag = self._next_flag
        self._next_flag += self._counts.get(name, self._span)
        if self._next_flag > self._flags_end:
            raise SimulationError(f"no number is left for the sync flags {name}")
        return flag
