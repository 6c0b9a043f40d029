"""Known contents of a core's memories: words of scalar memory, and buffers that decide control flow.

Almost all bytes that a program moves decide nothing, and are not kept. Kept are the words that scalar code stores, and
the contents of arguments and operands that were given as values; these are followed through the program's own copies.
Addresses in HBM and VMEM count words of four bytes here.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from systolic.simulator.errors import check_most
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import DivergedError, Lanes, lanes_in
from systolic.simulator.hardware.round_words import RoundWords, present
from systolic.simulator.hardware.values import COMPUTED, NEVER_WRITTEN, Unknown
from systolic.simulator.hardware.words import joined, lane, picked

WORD_BYTES = 4
ROW_WORDS = 128  # addresses in VMEM, and those that are made up, count rows of 512 bytes
ROW_BYTES = ROW_WORDS * WORD_BYTES

_SCALAR_WORDS = 1 << 18  # of a core's scalar memory
_MAX_SCALAR_WORDS = 4 * _SCALAR_WORDS  # allocations lie further apart here than on the chip
_MAX_BUFFERS = 1 << 20
_WORDS_AN_ITERATION = 64  # words that are moved while a loop goes round once

Words = Sequence[int | Unknown]
Contents = Callable[[], Words | Unknown]


@dataclass(frozen=True, slots=True)
class _Buffer:
    first: int  # word
    size: int  # words
    contents: Contents
    skip: int  # words of `contents` before the buffer's first
    brought: bool = True  # by the program itself; else by the caller of the operation
    last: int = field(init=False)  # word

    def __post_init__(self) -> None:
        object.__setattr__(self, "last", self.first + self.size - 1)

    def words(self, first: int, size: int) -> Words | Unknown:
        contents = self.contents()
        if isinstance(contents, Unknown):
            return contents
        begin = first - self.first + self.skip
        return contents[begin : begin + size]


_FIRST, _LAST = operator.attrgetter("first"), operator.attrgetter("last")


class Memory:
    """The memories of one core.

    Args:
      initial: a word of scalar memory that the program reads but never wrote.
      iterations: the core's budget, from which large copies are paid.
    """

    def __init__(self, initial: Callable[[int], int | Unknown], iterations: IterationBudget) -> None:
        self._initial = initial
        self._iterations = iterations
        self._scalar: dict[int, int | Unknown] = {}
        self._buffers: dict[str, list[_Buffer]] = {}  # by space, in order of address, none overlapping

    def load(self, address: int) -> int | Unknown:
        if type(address) is not int:
            if isinstance(address, Unknown):
                return address
            if type(address) is Lanes:
                return joined([lane(self.load(value), number) for number, value in enumerate(address.values)])
            address = present(address)
        word = self._scalar.get(address)
        return self._initial(address) if word is None else word

    def store(self, address: int | Unknown, value: int | Unknown) -> None:
        if isinstance(address, Unknown):
            # Any word may be the one. Programs seen do this to local arrays only; a wrong guess would be silent.
            self._check_scalar(len(self._scalar))
            self._scalar = dict.fromkeys(self._scalar, address)
            return
        if type(address) is Lanes:
            for place in dict.fromkeys(address.values):
                self.store(place, picked(address == place, value, self.load(place)))
            return
        address = present(address)
        self._scalar[address] = value
        if len(self._scalar) > _MAX_SCALAR_WORDS:
            self._check_scalar(len(self._scalar))

    def repeat(self, words: Mapping[int, int | Unknown], overwritten: Iterable[tuple[str, int, int]]) -> None:
        """Store words of scalar memory, and mark overwritten ranges (space, first word, words) as unknown."""
        self._scalar.update(words)
        for place in overwritten:
            self.forget(*place)

    @property
    def scalar_words(self) -> Mapping[int, int | Unknown]:
        return self._scalar

    @property
    def words(self) -> dict[int, Any]:
        """Words of scalar memory, to be changed."""
        return self._scalar

    def share(self, space: str, other: Memory) -> None:
        """Let what is known of `space` be known here and in the memory of another core of the device."""
        self._buffers[space] = other._buffers.setdefault(space, [])

    def knows(self, space: str, first: int, size: int) -> bool:
        """True if anything is known of some words outside scalar memory."""
        buffers = self._buffers.get(space, [])
        at = bisect.bisect_left(buffers, first, key=_LAST)
        while at < len(buffers) and buffers[at].first < first + size:
            if not isinstance(buffers[at].contents(), Unknown):
                return True
            at += 1
        return False

    def define(self, space: str, first: int, size: int, contents: Contents, *, brought: bool = True) -> None:
        """Let `size` words of `space`, from `first` on, hold `contents`; see `brought_word`."""
        if space == "smem":
            self._fill(first, size, contents())
            return
        self._define(space, _Buffer(first, size, contents, 0, brought))

    def _define(self, space: str, buffer: _Buffer) -> None:
        self.forget(space, buffer.first, buffer.size)
        buffers = self._buffers.setdefault(space, [])
        check_most(len(buffers), _MAX_BUFFERS, f"buffers in {space}")
        bisect.insort(buffers, buffer, key=_FIRST)

    def forget(self, space: str, first: int, size: int) -> None:
        """Mark words as not known."""
        if space == "smem":
            self._fill(first, size, COMPUTED)
            return
        buffers = self._buffers.get(space)
        if not buffers:
            return
        at = bisect.bisect_left(buffers, first, key=_LAST)
        while at < len(buffers) and buffers[at].first < first + size:
            del buffers[at]

    def word(self, space: str, address: int) -> int | Unknown:
        if isinstance(address, Unknown):
            return address
        if space == "smem":
            return self.load(address)
        buffer = self._buffer(space, address)
        if buffer is None:
            return COMPUTED
        words = buffer.words(address, 1)
        return words if isinstance(words, Unknown) else words[0] if words else NEVER_WRITTEN

    def brought_word(self, space: str, address: int) -> int | Unknown:
        """Return a word that the program has copied there itself."""
        buffer = None if space == "smem" else self._buffer(space, address)
        return COMPUTED if buffer is not None and not buffer.brought else self.word(space, address)

    def copy(
        self,
        source: str,
        begin: int,
        destination: str,
        first: int,
        size: int,
        *,
        contiguous: bool,
        to: Memory | None = None,
    ) -> None:
        """Copy `size` words from `begin` in `source` to `first` in `destination`, here or in another core.

        Where one device represents all, what it sends to another comes back: `to` is this memory.
        """
        if lanes_in((begin, first, size)):
            self._copy_lanes(source, begin, destination, first, size)
            return
        if to is self and self._knows(source, begin):
            raise DivergedError("a copy to other devices of something that is known")
        to = to or self
        for address in (begin, first, size):
            if isinstance(address, Unknown):  # where to, is not known either: nothing is known to be overwritten
                return
        if source == "smem":
            self._check_scalar(size)
            words = [present(self.load(begin + i)) for i in range(size)]
            to.define(destination, first, size, lambda: words)
            return
        buffer = self._buffer(source, begin)
        if buffer is None or not contiguous:
            to.forget(destination, first, size)
            return
        inner = min(size, buffer.size - (begin - buffer.first))
        if destination == "smem":
            to._fill(first, inner, buffer.words(begin, inner))
        else:
            to._define(destination, _Buffer(first, inner, buffer.contents, begin - buffer.first + buffer.skip))

    def places_now(self, source: str, begin: Any, destination: str, first: Any, size: Any) -> tuple[Any, Any, Any]:
        """Return the places and the size of a copy in the present round of a loop.

        All rounds need the same places if something is known at some of them.
        """
        size = present(size)
        for space, place in ((source, begin), (destination, first)):
            if type(place) is RoundWords and (
                space == "smem"
                or isinstance(size, Unknown)
                or any(self.knows(space, at, size) for at in place.places())
            ):
                place.settled()
        now = (place[0] if type(place) is RoundWords else place for place in (begin, first))
        return (*now, size)

    def _knows(self, space: str, address: int) -> bool:
        """True if anything is known of a copy's source."""
        if space == "smem":
            return True
        buffer = None if isinstance(address, Unknown) else self._buffer(space, address)
        return buffer is not None and not isinstance(buffer.words(address, 1), Unknown)

    def _copy_lanes(self, source: str, begin: Any, destination: str, first: Any, size: int) -> None:
        """Copy from or to an address, or with a size, that differs between devices."""
        count = lanes_in((begin, first, size))
        largest = max(lane(size, number) for number in range(count))
        begins = [lane(begin, number) for number in range(count)]
        if destination == "smem" and source != "smem" and not lanes_in((first, size)):
            for offset in range(size):
                word = joined([lane(self.word(source, begin + offset), number) for number, begin in enumerate(begins)])
                self.store(first + offset, word)
        elif any(self._knows(source, begin) for begin in set(begins)):
            raise DivergedError("contents that are known go to different places on different devices")
        else:
            for place in dict.fromkeys(lane(first, number) for number in range(count)):
                self.forget(destination, place, largest)

    def _buffer(self, space: str, address: int) -> _Buffer | None:
        buffers = self._buffers.get(space, [])
        at = bisect.bisect_right(buffers, address, key=_FIRST) - 1
        if at < 0 or address >= buffers[at].first + buffers[at].size:
            return None
        return buffers[at]

    def _fill(self, first: int, size: int, contents: Words | Unknown) -> None:
        size = min(size, _SCALAR_WORDS)  # an operand's, with what pads it, is an estimate from above
        self._check_scalar(size)
        if isinstance(contents, Unknown):
            self._scalar.update(dict.fromkeys(range(first, first + size), contents))
            return
        words = contents[:size]
        self._scalar.update(zip(range(first, first + len(words)), words, strict=True))

    def _check_scalar(self, words: int) -> None:
        check_most(words, _MAX_SCALAR_WORDS, "words of scalar memory")
        self._iterations.spend(words // _WORDS_AN_ITERATION)
