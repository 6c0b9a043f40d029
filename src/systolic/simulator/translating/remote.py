"""Labels of communications in a program that runs on one device of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCode:
    """A program's acts on other devices.

    Attributes:
      numbered: flags that others signal by number, by the name that the program has for them.
      labels: names of communications, by the `id` of the instruction that signals or copies for them.
      default: the name for all others.
    """

    numbered: Mapping[str, int]
    labels: Mapping[int, str]
    default: str

    def label(self, instruction: object) -> str:
        return self.labels.get(id(instruction), self.default)
