"""Places of a program's results: the runtime leaves a pointer, or, for several results, one to a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from systolic.simulator.reading.hlo import TopLevelHlo


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPointers:
    """The pointers to a program's results."""

    words: Mapping[int, int]  # words of scalar memory that hold such a pointer, by address
    others: Callable[[int], int]  # other words that the runtime has left
    # The number of results and those that reuse a parameter's memory; None: one result that reuses none.
    hlo: TopLevelHlo | None
    parameter: Callable[[int], int]  # gives the address of a parameter
    result: Callable[[int], int]  # gives the address of one of several results that reuses none

    def word(self, address: int) -> int:
        """Return the runtime's value of a word of scalar memory."""
        pointer = self.words.get(address)
        if pointer is None:
            return self.others(address)
        return self._place(0, pointer) if self.hlo is None or self.hlo.results is None else pointer

    def tables(self) -> dict[int, list[int]]:
        """Return the tables of results, by the pointers to them."""
        count = self.hlo.results if self.hlo is not None else None
        if count is None:
            return {}
        return {pointer: [self._place(n, self.result(n)) for n in range(count)] for pointer in self.words.values()}

    def _place(self, number: int, own: int) -> int:
        parameter = self.hlo.aliases.get(number) if self.hlo is not None else None
        return own if parameter is None else self.parameter(parameter)
