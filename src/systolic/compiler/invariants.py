"""Values of a traced function that every round of a loop computes alike are kept once, for all rounds.

Each layer of a model may call a kernel with arrays that it computes anew from constants: on 64 devices these would be
gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from systolic.compiler.deferred import Deferred


class Invariants:
    """Values that do not depend on the round.

    Args:
        arguments: those of the function.
    """

    def __init__(self, arguments: Iterable[Deferred]) -> None:
        self._values = set(arguments)
        self._made: dict[tuple[Hashable, ...], list[Deferred]] = {}

    def once(self, place: Hashable, inputs: Sequence[Deferred], make: Callable[[], list[Deferred]]) -> list[Deferred]:
        """Return what a place of the function makes of its inputs: the same again if they are invariant.

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
