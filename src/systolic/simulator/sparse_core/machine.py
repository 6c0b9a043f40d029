"""The functions that a SparseCore program calls: flags, streams, copies of code, scalar memory and arguments.

A tile has one engine for streams into its memory and one for those out of it. A stream holds its engine for its bytes
at the engine's rate, or for its indices if these take longer, and crosses the HBM pipe that all cores of the device
share; it lands a latency later. Which rows an index list names decides no time here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.memory import WORD_BYTES
from systolic.simulator.hardware.sync_flags import COUNTS_COPIES
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import COMPUTED, LANE_NUMBERS, MASK, NEVER_WRITTEN, Unknown
from systolic.simulator.hardware.words import joined, lane
from systolic.simulator.sparse_core.actions import CoreActions, TileState
from systolic.simulator.sparse_core.clock import SparseClock, SparseCounts
from systolic.simulator.sparse_core.outside import SparseCopy

# A sequencer's flag or word as a tile names it; a tile's flag as a copy of code names it, from tile to tile and in it.
_SEQUENCER = 1 << 20
_TILE_FLAGS = 0x1C00
_FLAGS_OF_A_TILE = 64
_POLLS = 8  # after more equal reads of a word in a row, a tile is taken to wait for another value
# What a translated program calls or reads of its machine.
CALLED = (
    *("wait", "stream", "copy", "task", "barrier", "add", "put", "signal", "load", "store", "read_argument"),
    *("write_argument", "lanes", "lanes_below", "blocked", "round", "tile", "core", "general", "refuse", "fetch_add"),
    *("lanes_of_both", "read_flag", "signal_inside", "left"),
)


class SparseMachine:
    """Runs one program of a sequencer, or one task of a tile.

    Args:
      core_number: as the program reads it.
      tile: the tile; None: it is the sequencer's program.
      memory: its scalar memory's words.
      arguments: the argument registers.
    """

    def __init__(
        self,
        core: CoreActions,
        core_number: int,
        clock: SparseClock,
        dma: DmaEngine,
        counts: SparseCounts,
        iterations: IterationBudget,
        timeline: Timeline | None,
        *,
        tile: TileState | None,
        memory: dict[int, int | Unknown],
        arguments: dict[int, int | Unknown],
        granule_bytes: int,
        lane_count: int,
    ) -> None:
        self._core_state = core
        self._clock = clock
        self._dma = dma
        self._counts = counts
        self._iterations = iterations
        self._timeline = timeline
        self._tile_state = tile
        self._flags = core.flags if tile is None else tile.flags
        self._memory = memory
        self._arguments = arguments
        self._granule_bytes = granule_bytes
        self._lane_count = lane_count
        self.cycle = clock.cycle
        self.core = core_number
        self.tile: int | Unknown = NEVER_WRITTEN if tile is None else tile.number
        self.waits_for = ""
        self._polled: tuple[int, int] | None = None  # the word that was read last, and its place
        self._polls = 0  # how often again, with nothing else between
        self.add: Callable[[float, int | Unknown, int], None] = self._flags.add
        self.put: Callable[[int | Unknown, int], None] = self._flags.put

    # ---- time ----

    def wait(self, time: float, flag: int | Unknown, amount: int, equal: bool) -> float | None:
        end = self._flags.wait(time, flag, amount, equal)
        if end is not None and self._tile_state is not None:
            self._counts.stall_cycles += end - time
            if self._timeline is not None and end > time:
                self._timeline.add("stall", time, end, "stream")
        return end

    def stream(
        self, time: float, flag: int | Unknown, source: str, destination: str, words: int, count: int, indexed: bool
    ) -> None:
        """Start a stream of `count` times `words`, which adds all its words to `flag` when it has landed."""
        if isinstance(words, Unknown) or isinstance(count, Unknown):
            raise SimulationError("how much a stream moves is not known")
        engines = self._own_tile().engines
        size = moved = words * count * WORD_BYTES
        direction = "out" if source == "tilespmem" else "in"
        if indexed and "hbm" in (source, destination):
            # HBM is read and written by the granule, also for an index whose row is a word.
            moved = count * -(-words * WORD_BYTES // self._granule_bytes) * self._granule_bytes
        begin = max(time, engines.get(direction, 0.0))
        busy = max(moved / self._clock.stream_bytes_per_cycle, count * self._clock.index_cycles if indexed else 0.0)
        engines[direction] = end = begin + busy
        counts = self._counts
        counts.streams += 1
        counts.indices += count if indexed else 0
        counts.hbm_read_bytes += moved if source == "hbm" else 0
        counts.hbm_written_bytes += moved if destination == "hbm" else 0
        if "hbm" in (source, destination):
            end = max(end, self._dma.cross(begin, moved))
        landed = end + self._clock.latency_cycles
        if self._timeline is not None:
            self._timeline.add("copy", begin, landed, f"{source} → {destination}", size)
        self._flags.land(flag, landed, words * count)

    def copy(
        self,
        time: float,
        flag: int | Unknown,
        source: str,
        destination: str,
        begin: int | Unknown,
        first: int | Unknown,
        granules: int | Unknown,
    ) -> None:
        """Start a copy of whole granules: code, or blocks of the memory that tiles share."""
        if isinstance(granules, Unknown) or isinstance(flag, Unknown):
            raise SimulationError("how much a copy moves, or which flag it signals, is not known")
        size = granules * self._granule_bytes
        end = self._dma.cross(time, size) if "hbm" in (source, destination) else time
        self._counts.hbm_read_bytes += size if source == "hbm" else 0
        self._counts.hbm_written_bytes += size if destination == "hbm" else 0
        flags = self._flags
        if self._tile_state is not None and flag >= _TILE_FLAGS:
            tile, flag = divmod(flag - _TILE_FLAGS, _FLAGS_OF_A_TILE)
            flags = self._core_state.tiles[tile].flags
        flags.land(flag, end + self._clock.latency_cycles, granules)
        if destination == "smem" and source == "hbm":
            if isinstance(begin, Unknown) or isinstance(first, Unknown):
                raise SimulationError("which table a sequencer loads is not known")
            words = self._core_state.table_words(begin, size // WORD_BYTES)
            self._memory.update({first + number: word for number, word in enumerate(words)})
        if destination == "timem":
            if isinstance(begin, Unknown) or isinstance(first, Unknown):
                raise SimulationError("which code a tile loads is not known")
            self._core_state.code_copied(begin, first)

    def general(
        self,
        time: float,
        flag: int | Unknown,
        source_flag: int | Unknown,
        source: str,
        destination: str,
        granules: int | Unknown,
        target: int | Unknown,
    ) -> None:
        """Start a copy to this device or another."""
        if isinstance(granules, Unknown) or isinstance(target, Unknown):
            raise SimulationError("how much a copy moves, or where to, is not known")
        if isinstance(flag, Unknown) or isinstance(source_flag, Unknown):
            raise SimulationError("which flags a copy signals is not known")
        self._core_state.copy(
            SparseCopy(
                time=time,
                launched=self._core_state.launched,
                flag=flag,
                source_flag=source_flag,
                source=source,
                destination=destination,
                size_bytes=granules * self._granule_bytes,
                amount=1 if source_flag & COUNTS_COPIES else granules,
                target=target,
            )
        )

    def fetch_add(
        self, time: float, address: int | Unknown, flag: int | Unknown, amount: int | Unknown
    ) -> float | None:
        """Put a word of the sequencer's scalar memory into a flag, and add to the word; None while it is only polled.

        A tile that reads the same word again and again, and does nothing else, goes on when the sequencer stores one.
        """
        if self._tile_state is None or isinstance(address, Unknown) or not address & _SEQUENCER:
            raise SimulationError("another core's scalar memory than the sequencer's is read")
        memory, place = self._core_state.sequencer_memory, address & (_SEQUENCER - 1)
        word = memory.get(place, NEVER_WRITTEN)
        if isinstance(word, Unknown) or isinstance(amount, Unknown):
            unknown = word if isinstance(word, Unknown) else amount
            raise SimulationError(f"a word of the sequencer's depends on {unknown}")
        if self._polled == (place, word):
            self._polls += 1
            if self._polls > _POLLS and not amount:
                self._core_state.wait_for_store()
                return None
        else:
            time = time if self._polls <= _POLLS else max(time, self._core_state.stored_at)
            self._polled, self._polls = (place, word), 0
        memory[place] = (word + amount) & MASK
        self._flags.put(flag, word)
        return time

    def read_flag(self, time: float, flag: int | Unknown) -> int:
        return self._flags.count(time, flag)

    def refuse(self, what: str) -> None:
        raise SimulationError(f"not understood, and not skipped: {what}")

    def barrier(self, time: float, number: int) -> float | None:
        self._polled, self._polls = None, 0
        return self._core_state.barrier(number, self._own_tile().number, time)

    def task(self, time: float, first: int, how: int) -> None:
        """Start the task in the argument registers from `first` on, on the tiles of the mask in `how`."""
        arguments = [self._arguments.get(first + offset, NEVER_WRITTEN) for offset in range(max(self._arguments) + 1)]
        self._core_state.start_task(time, arguments, how & 0xFFFF)

    def signal(self, time: float, address: int | Unknown, amount: int) -> None:
        """Signal a flag of another core."""
        self._core_state.signal_outside(time, address, amount)

    def signal_inside(self, time: float, address: int | Unknown, amount: int) -> None:
        """Signal a flag of this core's sequencer or of tile 0, the only tile that listings were seen to signal."""
        if isinstance(address, Unknown):
            raise SimulationError(f"whom a tile or its sequencer signals depends on {address.why}")
        if address & _SEQUENCER:
            self._core_state.flags.land(address & (_SEQUENCER - 1), time, amount)
        elif address < _FLAGS_OF_A_TILE:
            self._core_state.tiles[0].flags.land(address, time, amount)
        else:
            raise SimulationError(f"which tile is signalled by address {address:#x} is not known")

    def blocked(self, where: str) -> None:
        self.waits_for = where

    def round(self, count: int = 1) -> None:
        self._iterations.spend(count)

    def left(self) -> int:
        """Return how many rounds loops may still go."""
        return self._iterations.left

    def _own_tile(self) -> TileState:
        if self._tile_state is None:
            raise SimulationError("a sequencer streams, or waits at a barrier of the tiles")
        return self._tile_state

    # ---- values ----

    def lanes(self, mask: int | Unknown) -> int:
        """Count the lanes of a mask."""
        if isinstance(mask, Unknown):
            raise SimulationError(f"how many lanes a stream's mask has depends on {mask.why}")
        return mask.bit_count()

    def lanes_below(self, limit: int | Unknown, numbers: int | Unknown) -> int | Unknown:
        """Return the mask of lanes whose number is below a limit, where `numbers` are the lanes' numbers."""
        if isinstance(limit, Unknown) or numbers is not LANE_NUMBERS:
            return COMPUTED
        return (1 << min(limit, self._lane_count)) - 1

    def lanes_of_both(self, first: int | Unknown, other: int | Unknown) -> int | Unknown:
        """Return the lanes that both masks have. One that is not known says which indices are within bounds: all."""
        if isinstance(first, Unknown):
            return other
        return first if isinstance(other, Unknown) else first & other

    def load(self, address: Any) -> Any:
        if isinstance(address, Unknown):
            return address
        if type(address) is Lanes:
            return joined([lane(self.load(of_device), number) for number, of_device in enumerate(address.values)])
        return self._memory.get(address, NEVER_WRITTEN)

    def store(self, time: float, address: int | Unknown, value: int | Unknown) -> None:
        if isinstance(address, Unknown):
            raise SimulationError(f"where a word is stored depends on {address.why}")
        self._memory[address] = value
        if self._tile_state is None:
            self._core_state.stored(time)

    def read_argument(self, number: int) -> int | Unknown:
        return self._arguments.get(number, NEVER_WRITTEN)

    def write_argument(self, number: int, value: int | Unknown) -> None:
        self._arguments[number] = value


def whole(time: float) -> int:
    """Round a time up to a cycle of the TensorCore."""
    return math.ceil(time)
