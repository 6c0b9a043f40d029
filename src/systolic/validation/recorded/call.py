"""A call of a JAX function that repeats a recorded operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments: abstract arrays, and the contents of small ones where they decide the time."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
