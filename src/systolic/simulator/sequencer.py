"""The sequencer of a core, which executes one program."""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Hashable, Sequence
from functools import partial
from typing import Any

from systolic.simulator.core_parts import Activation, CoreParts, Progress
from systolic.simulator.device_detours import DetourDevice
from systolic.simulator.errors import SimulationError, UnknownValueError, check_most
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.memory import ROW_WORDS, WORD_BYTES
from systolic.simulator.hardware.round_words import RoundWords, present
from systolic.simulator.hardware.values import COMPUTED, NEVER_WRITTEN, Unknown
from systolic.simulator.hardware.words import picked
from systolic.simulator.other_devices import RemoteCopy
from systolic.simulator.reading.listing import TOP_LEVEL
from systolic.simulator.sparse_core.device import SPARSE_CORE_BIT
from systolic.simulator.sparse_core.launch import DESCRIPTOR_GRANULES

_NAMED_WORD = re.compile(r"\bcore id\b|\blogical chip id\b")

# How a copy names a SparseCore's sync flag as its end: bit 15 says that it is one, the bits from 13 on whose.
_SPARSE_COPY, _SPARSE_COPY_NUMBER = 15, 13
_LOCAL_FLAG = 16  # above it, where the copy's end signals another flag of this core

_MAX_RUNNING = 30


class Sequencer:
    """Execute a translated program, which calls it for DMAs and flags, the MXUs, memory, and other programs."""

    def __init__(self, parts: CoreParts, activation: Activation) -> None:
        device, model, core = parts.device, parts.model, parts.number
        self._translation = activation.translation
        self._dma = device.dma
        self._mailboxes = device.mailboxes
        self._memory = parts.memory
        self._core = core
        self._passed = activation.passed
        self._granule_words = model.granule_bytes // WORD_BYTES
        # Words per unit of an address in a copy.
        self._address_words = {
            "hbm": model.hbm_address_bytes // WORD_BYTES,
            "vmem": model.vmem_address_bytes // WORD_BYTES,
            "cmem": ROW_WORDS,
        }
        self._assumption = activation.assumption
        self._sparse_cores, self._barna_cores = device.sparse_cores, device.barna_cores
        self._launches = self._translation.name == TOP_LEVEL  # which alone starts SparseCores
        self._others = device.others
        self._named_words = parts.named_words
        self._dma_latency_cycles = model.dma_latency_cycles
        self.dma_issue_cycles, self.dma_wait_cycles = model.dma_issue_cycles, model.dma_wait_cycles
        self.timer = activation.timer
        self.iterations = parts.iterations
        self.counts: Sequence[int] = ()  # how often each basic block ran, once the program is over
        self.waits_for = ""  # what the program can't go on without, for the message of a deadlock
        # Called by the program, in addition to the methods below.
        program, dma = self._translation.name, device.dma
        self.start = partial(dma.start, core, program)
        self.wait = partial(dma.wait, core, program)
        self.early_wait = partial(dma.early_wait, core, program)
        self.wait_for_value = partial(dma.wait_for_value, core, program)
        self.count = partial(dma.count, core, program)
        self.add = partial(dma.add, core, program)
        self.put = partial(dma.set, core, program)
        self.send = partial(device.mailboxes.send, core)
        self.segment = activation.mxus.advance
        self.lap = self.timer.add
        self.store = parts.memory.store
        self.parameter = parts.parameter
        self.call = parts.call
        self.vector = COMPUTED
        self.next_round = parts.next_round or (lambda loop, time, registers: registers)
        self._rounds = device.rounds
        self._running = parts.running

    def run(self, time: int) -> Progress:
        """Run the program from `time`; raise SimulationError if control flow depends on a value that is not known."""
        check_most(len(self._running), _MAX_RUNNING, "programs, each called by the one before")
        self._running.append(self)
        try:
            end = yield from self._translation.run(time, self)
        except SimulationError as error:
            if error.located:  # by the program that this one had called
                raise
            located = type(error)(f"{self._where(error)}: {error}")
            located.located = True
            if isinstance(located, UnknownValueError) and isinstance(error, UnknownValueError):
                located.program, located.why = self._translation.name, error.why
                located.computed, located.argument = error.computed, error.argument
            raise located from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            located = SimulationError(f"{self._where(error)}: scalar code that cannot be executed: {error}")
            located.located = True
            raise located from error
        self._running.pop()
        return end

    def _where(self, error: BaseException) -> str:
        line = self._translation.listing_line(error)
        return self._translation.name if line is None else f"{self._translation.name}, line {line}"

    def left(self, iterations: int, counts: Sequence[int]) -> None:
        """End the program, whose loops went round `iterations` times and whose basic blocks ran `counts` times."""
        self.iterations.spend(iterations)
        self.counts = counts

    def too_long(self) -> None:
        """End a program whose loops do not end, by a SimulationError."""
        self.iterations.spend(self.iterations.left + 1)

    def goes_on(self, loop: int, jump: Any, back: bool) -> Any:
        """Return whether the branch after a round of a loop is taken; `back`: it then leads to the next round."""
        return jump if self._rounds is None else self._rounds.goes_on(loop, jump, back=back)

    def blocked(self, where: str) -> None:
        self.waits_for = where

    def move(self, source: str, begin: int, destination: str, first: int, granules: int, contiguous: bool) -> None:
        """Let contents follow a copy."""
        begin *= self._address_words.get(source, 1)
        first *= self._address_words.get(destination, 1)
        words = granules * self._granule_words
        if begin.__class__ is RoundWords or first.__class__ is RoundWords or words.__class__ is RoundWords:
            begin, first, words = self._memory.places_now(source, begin, destination, first, words)
        self._memory.copy(source, begin, destination, first, words, contiguous=contiguous)
        # Kernels write their scalar results to HBM by such copies too.
        if self._launches and source == "smem" and destination == "hbm" and granules == DESCRIPTOR_GRANULES:
            words = [self._memory.load(begin + word) for word in range(granules * self._granule_words)]
            self._sparse_cores.describe(self._core, words, launches=False)

    def store_on_some(self, predicate: Any, address: Any, value: Any) -> None:
        """Store a word on the devices whose predicate holds; nowhere if it is not known."""
        if not isinstance(predicate, Unknown):
            self.store(address, picked(predicate, value, self.load(address, "")))

    # ---- other devices ----

    def own(self, word: Any) -> Any:
        """Return device 0's value of a per-device word, and the present round's of one that differs by round."""
        if type(word) is RoundWords:
            return word.settled()
        return self._others.first(word.values) if type(word) is Lanes and self._others is not None else word

    def on_any(self, predicate: Any) -> Any:
        """Return whether a predicate holds on any device, if all may be timed as the slowest of them."""
        if type(predicate) is not Lanes or self._others is None:
            return predicate
        return bool(self._others.largest(predicate.values))

    def general(
        self,
        time: int,
        in_turn: bool,
        flag: int,
        granules: int,
        source: str,
        destination: str,
        run_bytes: int | None,
        source_flag: int,
        target: int,
        places: tuple[int, int, bool] | None,
        label: str,
    ) -> int | None:
        """Start a copy that names its target device; return when the core goes on.

        None: it has to be asked again in turn, because it may act on this device at once.

        Args:
          in_turn: everything before `time` has been simulated.
          target: names the device; see `slice.addresses`.
          places: source and destination of its contents, and whether in one piece; None: they are not followed.
          label: the communication that it belongs to.
        """
        others = self._others
        assert others is not None
        program = self._translation.name
        if not type(flag) is type(granules) is type(source_flag) is type(target) is int:
            flag, granules, source_flag, target = map(present, (flag, granules, source_flag, target))
        to = others.target(target, flag)
        if not in_turn and (not to.away or time >= self._dma.settled_until):
            return None
        copy = RemoteCopy(program, label, flag, source_flag, granules, source, destination, run_bytes, to)
        if not to.remote:
            goes_on = self._dma.start(
                self._core, program, time, flag, granules, source, destination, run_bytes, source_flag
            )
        else:
            goes_on = others.copy(self._core, time, copy)
        if places is not None:
            begin, first, contiguous = places
            begin *= self._address_words.get(source, 1)
            first *= self._address_words.get(destination, 1)
            memory = others.memory(to) if to.remote else None
            words = granules * self._granule_words
            begin, first, words = self._memory.places_now(source, begin, destination, first, words)
            self._memory.copy(source, begin, destination, first, words, contiguous=contiguous, to=memory)
        return goes_on

    def signal_any(self, time: int, address: int, amount: int, label: str) -> None:
        """Add to a flag of a core of any device."""
        address, amount = present(address), present(amount)
        if address >> SPARSE_CORE_BIT & 1:
            self._sparse_cores.signal(self._core, time, address, amount)
        else:
            assert self._others is not None
            self._others.signal(self._core, self._translation.name, time, address, amount, label)

    def together(self, time: int, block: int, label: str) -> int | None:
        """Pass the barrier that a block ends with; None: execute it."""
        assert self._others is not None
        return self._others.together(self._core, time, self._translation.barriers[block], label)

    def apart(
        self, number: int, time: int, jump: Lanes, values: Sequence[Any]
    ) -> Generator[int | None, None, tuple[Any, ...]]:
        """Take a detour for every device; return the time at which they are back, and registers."""
        assert self._others is not None
        detour = self._translation.detours[number]
        return (yield from DetourDevice.take(self, self._others, detour, time, jump, values))

    # ---- SparseCores and BarnaCores ----

    def signal(self, time: int, address: int, amount: int) -> None:
        if address >> SPARSE_CORE_BIT & 1:
            self._sparse_cores.signal(self._core, time, address, amount)
        else:
            self._dma.signal(self._translation.name, time, address, amount)

    def send_descriptor(self, time: int, granules: int, source: int, flag: int, source_flag: int) -> int:
        """Copy a descriptor into a SparseCore's queue, which launches it; return when the core goes on."""
        if not flag >> _SPARSE_COPY & 1 or granules != DESCRIPTOR_GRANULES:
            raise SimulationError("a copy from scalar memory to HBM that launches nothing")
        words = [self._memory.load(source + word) for word in range(granules * self._granule_words)]
        self._sparse_cores.describe(self._core, words, launches=True)
        program, local = self._translation.name, (1 << _LOCAL_FLAG) - 1
        goes_on, carried = self._dma.carry(self._core, time, 1, "smem", "hbm", 0)
        landed = goes_on + self._dma_latency_cycles
        for number, end in ((source_flag & local, carried), (flag >> _LOCAL_FLAG, landed)):
            if number:  # with libtpu 0.0.50 only one is named
                self._dma.land(self._core, program, number, end, 1)  # a wait counts it once, whatever its size
        self._sparse_cores.offer(self._core, landed, flag >> _SPARSE_COPY_NUMBER & 3)
        return goes_on

    def start_barna_core(self, time: int, descriptor: int) -> int:
        """Start a BarnaCore, which waits for its flags; return when the core goes on."""
        flag = self._memory.load(descriptor + 1)
        if isinstance(flag, Unknown):
            raise SimulationError("which flag the copy to a BarnaCore signals is not known")
        return self._dma.start(self._core, self._translation.name, time, flag, 1, "smem", "barna core", 0)

    def set_remote(self, time: int, address: int, value: Any, space: str) -> None:
        """Set a flag of a BarnaCore; `space` is the memory to which the value points, "" if to none."""
        self._barna_cores.set(self._core, self._translation.name, time, present(address), present(value), space)

    def wait_for_sparse_core(self, time: int, flag: int, count: int) -> int | None:
        """Wait until a SparseCore has ended a launched program."""
        self._sparse_cores.watch(self._core, self._translation.name, flag)
        return self.wait(time, flag, count, "semaphore")

    def receive(self, time: int) -> tuple[int, int] | None:
        received = self._mailboxes.receive(self._core, time)
        if received is not None:
            self._dma.stalled(self._core, time, received[0], "semaphore")
        return received

    # ---- values ----

    def operand(self, register: str) -> int | Unknown:
        return self._known(self._passed.get(register, NEVER_WRITTEN), register)

    def pushed(self, value: int | Unknown) -> int | Unknown:
        return self._known(value, None)

    def load(self, address: int, comment: str) -> int | Unknown:
        named = _NAMED_WORD.search(comment) if self._named_words else None
        if named and named.group() in self._named_words:
            return self._named_words[named.group()]
        return self._known(self._memory.load(address), None if isinstance(address, Unknown) else ("smem", address))

    def word(self, row: int) -> int | Unknown:
        """Read the first word of a row of VMEM."""
        place = None if isinstance(row, Unknown) else ("vmem", row)
        return self._known(self._memory.word("vmem", row * ROW_WORDS), place)

    def _known(self, value: int | Unknown, place: Hashable | None) -> int | Unknown:
        if self._assumption is None or not isinstance(value, Unknown) or not value.computed:
            return value
        return self._assumption.value(place)
