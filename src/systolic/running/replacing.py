"""Replace attributes of modules for the duration of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """A new value of a module's attribute."""

    module: Any
    name: str
    value: Any


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Replace attributes, and restore them at the end of the block."""
    before: list[Replacement] = []
    try:
        for new in replacements:
            before.append(Replacement(new.module, new.name, getattr(new.module, new.name)))
            setattr(new.module, new.name, new.value)
        yield
    finally:
        for old in reversed(before):
            setattr(old.module, old.name, old.value)
