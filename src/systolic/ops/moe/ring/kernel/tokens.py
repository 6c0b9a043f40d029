"""Tokens of all devices that travel both ways round a ring, slab by slab, and stay in VMEM where they arrive.

Each slab has a place of its own, so no device has to signal that a place is free.
"""

from __future__ import annotations

from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.packed_rows import SUBLANES, PackedRows
from systolic.kernels.ring import Act
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.moe.blocks import ExpertsSpec


class Travel:
    """The tokens of all devices, slab by slab: half of the opposite device's come each way."""

    def __init__(self, refs: Any, spec: ExpertsSpec, tokens: PackedRows, walk: Walk) -> None:
        self._refs, self._tokens, self.walk = refs, tokens, walk
        self.hops, self._early_hops = spec.hops, spec.early_hops
        self._here = spec.tokens // spec.devices // SUBLANES  # tiles of a device

    def first_slab(self, act: Act) -> None:
        """Act on the copies of what has arrived before."""
        refs, registers = self._refs, self._tokens.registers
        for number, part in enumerate(refs.parts):
            target = self._tokens.in_tiles(refs.tokens).at[0, pl.ds(refs.first_tiles[number], part.shape[0])]
            act(pltpu.make_async_copy(part.at[:, pl.ds(0, registers)], target, refs.first_sem))
        self.own(0, act)

    def first_hop(self) -> None:
        """Send on what has arrived before of the first slab."""
        if self._early_hops < self.hops:
            for direction in DIRECTIONS:
                self._sent_early(direction).start()

    def later_hops(self) -> None:
        """Send the first slab by the hops that are left, and wait until all has arrived."""
        for hop in range(self._early_hops + 1, self.hops + 1):
            self._pass_on(0, hop)

    def own(self, slab: Any, act: Act) -> None:
        refs, registers = self._refs, self._tokens.registers
        source = refs.x.at[:, pl.ds(slab * registers, registers)]
        act(pltpu.make_async_copy(source, self._block(slab, 0, 0, is_whole=True), refs.own_sem.at[slab]))

    def _block(self, slab: Any, direction: int, hop: int, *, is_whole: bool) -> Any:
        """Return the tokens that come this many hops along a direction, or the half that comes the whole way."""
        half = self._here // 2
        first = self.walk.upstream(direction, hop) * self._here + (0 if is_whole else direction * half)
        return self._tokens.in_tiles(self._refs.tokens).at[slab, pl.ds(first, self._here if is_whole else half)]

    def _sent(self, slab: Any, direction: int, hop: int, source: Any = None) -> Any:
        block = self._block(slab, direction, hop, is_whole=hop < self.hops - 1)
        sems = self._refs.send_sem.at[direction, hop], self._refs.recv_sem.at[slab, direction, hop]
        return self.walk.copy_on(block if source is None else source, block, *sems, direction)

    def _sent_early(self, direction: int) -> Any:
        """Return the copy of a part in HBM, by the first hop that has not been before."""
        hop, half = self._early_hops, self._here // 2
        part = self._refs.parts[len(DIRECTIONS) * (hop - 1) + direction]
        tiles = slice(None) if hop < self.hops - 1 else pl.ds(direction * half, half)
        return self._sent(0, direction, hop, part.at[tiles, pl.ds(0, self._tokens.registers)])

    def advance(self, slab: Any, hop: int) -> None:
        """Send on what the neighbors have sent in the hop before: first, this device's own."""
        if hop == 0:
            self.own(slab, lambda copy: copy.wait())
        self._pass_on(slab, hop)

    def _pass_on(self, slab: Any, hop: int) -> None:
        for direction in DIRECTIONS:
            if hop > 0:
                self._sent(slab, direction, hop - 1).wait_recv()
            if hop < self.hops:
                self._sent(slab, direction, hop).start()

    def end(self, slab: Any, first_hop: int = 0) -> None:
        for direction in DIRECTIONS:
            for hop in range(first_hop, self.hops):
                self._sent(slab, direction, hop).wait_send()
