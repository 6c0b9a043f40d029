"""Contents of HLO's `iota`, which kernels get as positions: attention compares them with others to skip blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

_DIMENSION = re.compile(r"\biota_dimension=(\d{1,3})\b", re.ASCII)
_LANES = 128
_WORDS = ("s32", "u32")


@dataclass(frozen=True, slots=True)
class IotaWords(Sequence[int]):
    """Words that count up, each `repeats` times: word `i` is `i // repeats`. None is stored."""

    words: int
    repeats: int

    def __len__(self) -> int:
        return self.words

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        chosen = range(self.words)[place]
        return chosen // self.repeats if isinstance(chosen, int) else [number // self.repeats for number in chosen]


def iota_words(dtype: str, sizes: Sequence[int], layout: str, rest: str) -> IotaWords | None:
    """Return the words of an iota in the order of memory; None for a form or layout whose order is not known here.

    Args:
      rest: the instruction's text after its opcode.
    """
    match = _DIMENSION.search(rest)
    if match is None or dtype not in _WORDS or int(match[1]) != 0:
        return None
    if len(sizes) == 1 and layout.startswith("0:T("):
        return IotaWords(sizes[0], 1)
    if len(sizes) == 2 and sizes[1] == _LANES and layout.startswith("1,0:T(8,128)"):
        return IotaWords(sizes[0] * _LANES, _LANES)  # tiles as wide as the array follow each other row by row
    return None
