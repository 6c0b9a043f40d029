"""Addresses of cores of other devices, in signals and in the last operand of copies."""

from __future__ import annotations

from systolic.chips import SliceShape
from systolic.simulator.errors import SimulationError
from systolic.simulator.other_devices import RemoteTarget
from systolic.simulator.slice.route_tables import RouteTables

_CHIP_MASK = (1 << 14) - 1
# The core is in a signal's address, and in the flag that a copy signals there.
_SIGNAL_CORE, _FLAG_CORE = 14, 13
# Of the flag at the sender: the copy counts as one on both flags, whatever its size.
COUNTS_COPIES = 1 << 16


class Addresses:
    """Find devices of a slice by chip and core.

    Args:
      routes: map the sender's entries to chips; None: chips are named by number.
    """

    def __init__(self, shape: SliceShape, routes: RouteTables | None = None) -> None:
        self.routes = routes
        self._chips = shape.chips
        self._links = shape.links
        self._cores = shape.chip.cores_per_device
        self._devices = shape.devices_per_chip

    def of_signal(self, sender: int, address: int) -> RemoteTarget:
        return self._target(sender, address >> self._links.signal_chip_bit & _CHIP_MASK, address >> _SIGNAL_CORE & 1)

    def of_copy(self, sender: int, word: int, flag: int) -> RemoteTarget:
        """Return the target of a copy that signals a flag there."""
        if not word >> self._links.copy_remote_bit & 1:
            return RemoteTarget(0, 0, remote=False)
        return self._target(sender, word & _CHIP_MASK, flag >> _FLAG_CORE & 1)

    def _target(self, sender: int, chip: int, core: int) -> RemoteTarget:
        if self.routes is not None:
            chip = self.routes.target(sender // self._devices, chip)
        if chip >= self._chips:
            raise SimulationError(f"chip {chip} is meant, of {self._chips} that the slice has")
        within, core = divmod(core, self._cores)
        if within >= self._devices:
            raise SimulationError(f"core {core} of chip {chip} is meant, which it does not have")
        return RemoteTarget(chip * self._devices + within, core, remote=True)
