"""Labels of communications in a program that runs on one device of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCode:
    """A program's acts on other devices."""

    numbered: Mapping[str, int]  # flags that others signal by number, by the name that the program has for them
    # Names of communications, by the `id` of the instruction that signals or copies for them.
    labels: Mapping[int, str]
    default: str  # the name for all others

    def label(self, instruction: object) -> str:
        return self.labels.get(id(instruction), self.default)
