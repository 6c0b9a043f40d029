"""What is known of a core's memories: words of scalar memory, and the contents of buffers that decide control flow.

Almost all bytes that a program moves decide nothing, and are not kept. What is kept: the words that scalar code stores,
and the contents of arguments and operands that were given as values, followed through the copies that the program makes
of them. Addresses in HBM and VMEM count words of four bytes here.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from systolic.simulator.model.values import COMPUTED, NEVER_WRITTEN, Unknown

Words = Sequence[int | Unknown]
Contents = Callable[[], Words | Unknown]


@dataclass(frozen=True, slots=True)
class _Buffer:
    first: int  # word
    size: int  # words
    contents: Contents
    skip: int  # words of `contents` before the buffer's first

    def words(self, first: int, size: int) -> Words | Unknown:
        found = self.contents()
        if isinstance(found, Unknown):
            return found
        begin = first - self.first + self.skip
        return found[begin : begin + size]


class Memory:
    """The memories of one core.

    Args:
      initial: a word of scalar memory that the program reads but never wrote.
    """

    def __init__(self, initial: Callable[[int], int | Unknown]) -> None:
        self._initial = initial
        self._scalar: dict[int, int | Unknown] = {}
        self._buffers: dict[str, list[_Buffer]] = {}  # by space, in order of address, none overlapping

    def load(self, address: int) -> int | Unknown:
        """A word of scalar memory."""
        if isinstance(address, Unknown):
            return address
        found = self._scalar.get(address)
        return self._initial(address) if found is None else found

    def store(self, address: int | Unknown, value: int | Unknown) -> None:
        """Writes a word of scalar memory."""
        if isinstance(address, Unknown):
            # Any word may be the one. Programs seen do this to local arrays only; a wrong guess would be silent.
            self._scalar = dict.fromkeys(self._scalar, address)
            return
        self._scalar[address] = value

    def define(self, space: str, first: int, size: int, contents: Contents) -> None:
        """From `first` on, `size` words of `space` hold `contents`."""
        if space == "smem":
            self._fill(first, size, contents())
            return
        self.forget(space, first, size)
        bisect.insort(self._buffers.setdefault(space, []), _Buffer(first, size, contents, 0), key=lambda b: b.first)

    def forget(self, space: str, first: int, size: int) -> None:
        """These words hold something else now that is not known."""
        if space == "smem":
            self._fill(first, size, COMPUTED)
            return
        buffers = self._buffers.get(space)
        if not buffers:
            return
        at = bisect.bisect_left(buffers, first, key=lambda b: b.first + b.size - 1)
        while at < len(buffers) and buffers[at].first < first + size:
            del buffers[at]

    def word(self, space: str, address: int) -> int | Unknown:
        """One word."""
        if isinstance(address, Unknown):
            return address
        if space == "smem":
            return self.load(address)
        buffer = self._buffer(space, address)
        if buffer is None:
            return COMPUTED
        words = buffer.words(address, 1)
        return words if isinstance(words, Unknown) else words[0] if words else NEVER_WRITTEN

    def copy(self, source: str, begin: int, destination: str, first: int, size: int, *, contiguous: bool) -> None:
        """A copy of `size` words from `begin` in `source` to `first` in `destination`."""
        for address in (begin, first, size):
            if isinstance(address, Unknown):  # where to, is not known either: nothing is known to be overwritten
                return
        if source == "smem":
            words = [self.load(begin + i) for i in range(size)]
            self.define(destination, first, size, lambda: words)
            return
        buffer = self._buffer(source, begin)
        if buffer is None or not contiguous:
            self.forget(destination, first, size)
            return
        skip = begin - buffer.first + buffer.skip
        kept, inner = buffer.contents, min(size, buffer.size - (begin - buffer.first))

        def contents() -> Words | Unknown:
            found = kept()
            return found if isinstance(found, Unknown) else found[skip : skip + inner]

        self.define(destination, first, inner, contents)

    def _buffer(self, space: str, address: int) -> _Buffer | None:
        buffers = self._buffers.get(space, [])
        at = bisect.bisect_right(buffers, address, key=lambda b: b.first) - 1
        if at < 0 or address >= buffers[at].first + buffers[at].size:
            return None
        return buffers[at]

    def _fill(self, first: int, size: int, contents: Words | Unknown) -> None:
        if isinstance(contents, Unknown):
            self._scalar.update(dict.fromkeys(range(first, first + size), contents))
            return
        words = contents[:size]
        self._scalar.update(zip(range(first, first + len(words)), words, strict=True))
