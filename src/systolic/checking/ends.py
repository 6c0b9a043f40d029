"""Finds inputs whose first or last element along an axis changes no result, while its neighbours do.

A mask or a loop that ends one too early leaves the end of an axis out. Where nothing is known of the function, that
still shows: the element may be anything. Where a whole range at the end has no effect, as with padding, nothing is
said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_MIN_SIZE = 4  # of an axis: an end and two neighbours that are not the other end
_CHANGE = 8.0  # in standard deviations of the inputs: more than what is there, of both signs

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray] | None]


@dataclass(frozen=True, slots=True)
class UnreadEnd:
    """An end of an axis that changes no result."""

    argument: int
    axis: int
    is_last: bool


def ends(arguments: Sequence[np.ndarray]) -> list[UnreadEnd]:
    """Lists the ends of the last two axes of floating-point arguments: what `unread_ends` runs for."""
    return [
        UnreadEnd(number, axis, is_last)
        for number, array in enumerate(arguments)
        if array.dtype.kind in "fV"
        for axis in range(max(array.ndim - 2, 0), array.ndim)
        if array.shape[axis] >= _MIN_SIZE
        for is_last in (True, False)
    ]


def unread_ends(run: Run, arguments: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Iterator[UnreadEnd]:
    """Yields the ends that change no result, one run for each of `ends` and two more for each suspect.

    Args:
      run: calls the function with other arguments; None: it could not be run.
      arguments: flat.
      outputs: the flat results for these arguments.
    """

    def matters(end: UnreadEnd, distance: int) -> bool:
        changed = list(arguments)
        changed[end.argument] = _changed(arguments[end.argument], end, distance)
        results = run(changed)
        return results is None or any(
            first.tobytes() != other.tobytes() for first, other in zip(outputs, results, strict=True)
        )

    for end in ends(arguments):
        if not matters(end, 0) and matters(end, 1) and matters(end, 2):
            yield end


def _changed(array: np.ndarray, end: UnreadEnd, distance: int) -> np.ndarray:
    changed = array.copy()
    at = (slice(None),) * end.axis + (-1 - distance if end.is_last else distance,)
    part = changed[at]
    signs = np.where(np.arange(part.size).reshape(part.shape) % 2, -_CHANGE, _CHANGE)
    changed[at] = signs.astype(array.dtype)
    return changed
