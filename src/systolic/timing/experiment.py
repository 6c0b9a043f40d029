"""A function to compile for a chip, and to simulate on its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.compiler import NamedFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One function on one chip, or on a slice.

    Attributes:
      fn: a JAX function; static arguments are bound with `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s; the contents of small arrays are known to the simulation.
      chip: to compile for and to simulate.
      topology: a slice of such chips, "2x4"; None: it runs on one device.
      label: its name in errors and in progress.
      spans: number of the timeline's to keep, of each kind, from its beginning and from its end.
      cached: use a program that was compiled before, and keep this one.
      lines: record the source lines of each region's instructions.
    """

    fn: Callable[..., Any] | NamedFunction
    args: Sequence[Any]
    chip: Chip
    label: str
    topology: str | None = None
    spans: int = 0
    cached: bool = True
    lines: bool = False
