"""Read from HLO which partitions exchange data with each other: an operation's `replica_groups`.

Groups stand there as lists; as a range that is reshaped, transposed, and cut into groups of equal size; or as axes of a
mesh along which a group lies, whose devices may be a range that is reshaped and transposed. The compiler writes the
same groups in one way for one operation and in another for the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_RANGE = r"\[(?P<{0}cut>[\d,]{{1,40}})\](?:<=\[(?P<{0}range>[\d,]{{1,40}})\])?(?:T\((?P<{0}turned>[\d,]{{1,40}})\))?"
_ATTRIBUTE = re.compile(
    r"\breplica_groups=(?:"
    r"\{(?P<lists>(?:\{[\d,]*\},?)*)\}"
    rf"|{_RANGE.format('')}"
    rf"|mesh\[(?P<axes>['\w=,]{{1,200}})\](?:, device_ids=\({_RANGE.format('ids_')}\))?"
    r" \{(?P<named>['\w,]{1,200})\}"
    r")",
    re.ASCII,
)
_LIST = re.compile(r"\{([\d,]*)\}", re.ASCII)


def groups_of(text: str, partitions: int) -> Groups:
    """Return the groups of an operation, each in its order; none where it has none, or they are not understood."""
    match = _ATTRIBUTE.search(text)
    return _groups(match, partitions) if match is not None else ()


def with_groups(text: str, partitions: int, write: Callable[[Groups], str]) -> str:
    """Return the text with its groups written in another way, where they are understood."""

    def written(match: re.Match[str]) -> str:
        groups = _groups(match, partitions)
        return f"replica_groups={write(groups)}" if groups else match[0]

    return _ATTRIBUTE.sub(written, text)


def _groups(match: re.Match[str], partitions: int) -> Groups:
    if match["lists"] is not None:
        return tuple(map(_numbers, _LIST.findall(match["lists"]))) or (tuple(range(partitions)),)
    if match["named"] is None:
        return _cut(_turned(match["range"] or match["cut"], match["turned"], partitions), _numbers(match["cut"]))
    sizes = {name: int(size) for name, _, size in (axis.partition("=") for axis in match["axes"].split(","))}
    names, named = [*sizes], match["named"].split(",")
    devices = _turned(match["ids_range"] or match["ids_cut"] or str(partitions), match["ids_turned"], partitions)
    is_known = set(named) <= set(names) and len(set(named)) == len(named)
    if devices is None or not is_known or math.prod(sizes.values()) != partitions:
        return ()
    order = [*(name for name in names if name not in named), *named]
    mesh = devices.reshape([*sizes.values()]).transpose([*map(names.index, order)])
    return _cut(mesh, (-1, math.prod(sizes[name] for name in named)))


def _turned(extents: str, turned: str | None, partitions: int) -> np.ndarray | None:
    """Return the numbers of all partitions as an array of these extents, transposed; None if it has others."""
    shape, order = _numbers(extents), _numbers(turned or "")
    if math.prod(shape) != partitions or (order and sorted(order) != [*range(len(shape))]):
        return None
    return np.arange(partitions).reshape(shape).transpose(order or None)


def _cut(devices: np.ndarray | None, cut: Sequence[int]) -> Groups:
    if devices is None or (-1 not in cut and math.prod(cut) != devices.size) or len(cut) != 2:
        return ()
    return tuple(map(tuple, devices.reshape(cut).tolist()))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
