"""Addresses of cores of other devices, in signals and in the last operand of copies."""

from __future__ import annotations

from systolic.chips import SliceShape
from systolic.simulator.errors import SimulationError
from systolic.simulator.other_devices import RemoteTarget
from systolic.simulator.slice.route_tables import RouteTables
from systolic.simulator.sparse_core.outside import SPARSE_CORE, core_of_copy, core_of_signal

_CHIP_MASK = (1 << 14) - 1
# The core is in a signal's address, and in the flag that a copy signals there.
_SIGNAL_CORE, _FLAG_CORE = 14, 13


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
        self._sparse_cores = shape.chip.sparse_core.cores_per_device if shape.chip.sparse_core is not None else 1
        self._known: dict[tuple[int, int, int], RemoteTarget] = {}  # by sender, chip and core

    def of_signal(self, sender: int, address: int) -> RemoteTarget:
        return self._target(sender, address >> self._links.signal_chip_bit & _CHIP_MASK, address >> _SIGNAL_CORE & 1)

    def of_chip(self, sender: int, chip: int) -> RemoteTarget:
        """Return the first core of a chip."""
        return self._target(sender, chip, 0)

    def of_copy(self, sender: int, word: int, flag: int) -> RemoteTarget:
        """Return the target of a copy that signals a flag there."""
        if not word >> self._links.copy_remote_bit & 1:
            return RemoteTarget(0, 0, remote=False)
        return self._target(sender, word & _CHIP_MASK, flag >> _FLAG_CORE & 1)

    def of_sparse_copy(self, sender: int, word: int, flag: int) -> RemoteTarget:
        """Return the SparseCore to which a SparseCore copies."""
        return self._sparse_target(sender, word & _CHIP_MASK, core_of_copy(flag))

    def of_sparse_signal(self, sender: int, address: int) -> RemoteTarget:
        """Return the SparseCore that a SparseCore signals."""
        return self._sparse_target(sender, address >> self._links.signal_chip_bit & _CHIP_MASK, core_of_signal(address))

    def _sparse_target(self, sender: int, chip: int, core: int) -> RemoteTarget:
        if not core & SPARSE_CORE:
            raise SimulationError("a SparseCore copies to a TensorCore")
        within, core = divmod(core & ~SPARSE_CORE, self._sparse_cores)
        target = self._target(sender, chip, within * self._cores)
        return RemoteTarget(target.device, core, remote=True)

    def _target(self, sender: int, chip: int, core: int) -> RemoteTarget:
        key = sender, chip, core
        target = self._known.get(key)
        if target is None:
            target = self._known[key] = self._read(sender, chip, core)
        return target

    def _read(self, sender: int, chip: int, core: int) -> RemoteTarget:
        if self.routes is not None:
            chip = self.routes.target(sender // self._devices, chip)
        if chip >= self._chips:
            raise SimulationError(f"chip {chip} is meant, of {self._chips} that the slice has")
        within, core = divmod(core, self._cores)
        if within >= self._devices:
            raise SimulationError(f"core {core} of chip {chip} is meant, which it does not have")
        device = chip * self._devices + within
        return RemoteTarget(device, core, remote=True, away=device != sender)
