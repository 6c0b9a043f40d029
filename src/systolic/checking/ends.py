"""Find axes whose first or last elements are left out of the inputs, by the number of results that they change.

If a mask or a loop ends too early, the end of an axis is left out: other numbers there change no result, or only the
results at the same place, as in a softmax that does not count its last column. Elements next to it change many more.
This works for any function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_MIN_SIZE = 4  # of an axis: an end and two neighbors that are not the other end
_CHANGE = 8.0  # new value, with both signs, in standard deviations: larger than all inputs
# An end is left out if it changes less than this share of the results that its neighbors change. Under a causal mask
# the last key changes one row of results, and the two before it two and three.
_MIN_SHARE = 1 / 8
_DIFFERENT = 2.0**-7  # relative change of a result: one digit of bfloat16, which may be its dtype

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadEnd:
    """One end of an axis, which is left out.

    Attributes:
      argument: the argument's position.
      axis: an axis of the argument.
      is_last: True: the end of the axis; False: its beginning.
      elements: how many elements along the axis are left out, at least.
      results: how many results they change.
      usual: how many results the element next to them changes.
    """

    argument: int
    axis: int
    is_last: bool
    elements: int = 1
    results: int = 0
    usual: int = 0


def ends(arguments: Sequence[np.ndarray]) -> list[UnreadEnd]:
    """List both ends of the last two axes of each floating-point argument."""
    return [
        UnreadEnd(argument=number, axis=axis, is_last=is_last)
        for number, array in enumerate(arguments)
        if array.dtype.kind in "fV"
        for axis in range(max(array.ndim - 2, 0), array.ndim)
        if array.shape[axis] >= _MIN_SIZE
        for is_last in (True, False)
    ]


def unread_ends(run: Run, arguments: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Iterator[UnreadEnd]:
    """Yield the ends that are left out; run the function once for each of `ends`, and 2 to 10 times more for a suspect.

    Args:
      run: calls the function with other arguments; None: it could not be run.
      arguments: flat.
      outputs: the flat results for these arguments.
    """

    def changes(end: UnreadEnd, distance: int) -> int | None:
        changed = list(arguments)
        changed[end.argument] = _changed(arguments[end.argument], end, distance)
        results = run(changed)
        return None if results is None else sum(map(_count_differing, outputs, results))

    total = sum(output.size for output in outputs)
    for end in ends(arguments):
        count = changes(end, 0)
        if count is None or count >= _MIN_SHARE * total:
            continue
        distance, middle = 1, arguments[end.argument].shape[end.axis] // 2
        usual = changes(end, 1)
        while usual == count == 0 and 2 * distance <= middle:
            distance *= 2
            usual = changes(end, distance)
        further = changes(end, distance + 1)
        if usual is None or further is None:
            continue
        # The first query of causal attention sees one key: it changes nothing, and its neighbors only their own rows.
        results_per_place = total / arguments[end.argument].shape[end.axis]
        if count < _MIN_SHARE * min(usual, further) and min(usual, further) > results_per_place:
            elements = distance // 2 + 1 if distance > 1 else 1
            yield UnreadEnd(
                argument=end.argument,
                axis=end.axis,
                is_last=end.is_last,
                elements=elements,
                results=count,
                usual=usual,
            )


def _count_differing(first: np.ndarray, other: np.ndarray) -> int:
    """Count results that differ by more than their rounding, to which subtracting a maximum may change all of them."""
    if first.dtype.kind in "iub":
        return int((first != other).sum())
    with np.errstate(invalid="ignore", over="ignore"):
        before, after = (np.nan_to_num(array.astype(np.complex128)) for array in (first, other))
        return int((np.abs(before - after) > _DIFFERENT * np.maximum(np.abs(before), np.abs(after))).sum())


def _changed(array: np.ndarray, end: UnreadEnd, distance: int) -> np.ndarray:
    changed = array.copy()
    at = (slice(None),) * end.axis + (-1 - distance if end.is_last else distance,)
    part = changed[at]
    signs = np.where(np.arange(part.size).reshape(part.shape) % 2, -_CHANGE, _CHANGE)
    changed[at] = signs.astype(array.dtype)
    return changed
