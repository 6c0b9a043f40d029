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
    chip: Chip  # to compile for and to simulate
    label: str  # its name in errors and in progress
    topology: str | None = None  # a slice of such chips, "2x4"; None: it runs on one device
    # Number of the timeline's to keep, of each kind, from its beginning and from its end.
    spans: int = 0
    cached: bool = True  # use a program that was compiled before, and keep this one
    lines: bool = False  # record the source lines of each region's instructions
