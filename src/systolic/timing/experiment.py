"""A function to compile for a chip, and to simulate on its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.compiler import NamedFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One function on one chip, or on a slice."""

    fn: Callable[..., Any] | NamedFunction  # a JAX function; static arguments are bound with `functools.partial`
    # Arrays or `jax.ShapeDtypeStruct`s; the contents of small arrays are known to the simulation.
    args: Sequence[Any]
    chip: Chip
    label: str  # its name in errors and progress
    topology: str | None = None  # a slice of such chips, "2x4"; None: it runs on one device
    # Number of timeline spans of each kind to keep, from the beginning and from the end.
    spans: int = 0
    cached: bool = True  # reuse a stored program, and store a new one
    lines: bool = False  # record the source lines of each region's instructions
