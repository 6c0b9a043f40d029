"""Keep one copy of the values of a traced function that are the same in every round of a loop.

Each layer of a model may call a kernel with arrays that it computes from constants: one copy a layer and device would
take gigabytes on 64 devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from systolic.compiler.deferred import Deferred


class Invariants:
    """Values that do not depend on the round.

    Args:
        arguments: the function's arguments.
    """

    def __init__(self, arguments: Iterable[Deferred]) -> None:
        self._values = set(arguments)
        self._made: dict[tuple[Hashable, ...], list[Deferred]] = {}

    def once(self, place: Hashable, inputs: Sequence[Deferred], make: Callable[[], list[Deferred]]) -> list[Deferred]:
        """Return the values that a place of the function computes from its inputs: the same objects if they are
        invariant.

        Args:
            place: the id of an equation, or of another part of the function, which outlives this.
            inputs: all that `make` uses.
        """
        if not self._values.issuperset(inputs):
            return make()
        key = place, *inputs
        if key not in self._made:
            self._made[key] = make()
            self._values.update(self._made[key])
        return self._made[key]

    def one(self, place: Hashable, inputs: Sequence[Deferred], make: Callable[[], Deferred]) -> Deferred:
        """Return the only value that a place makes; see `once`."""
        return self.once(place, inputs, lambda: [make()])[0]

    def known(self, place: Hashable, value: object) -> Deferred:
        """Return a value that is written in the function."""
        return self.one(place, (), lambda: Deferred.known(value))
