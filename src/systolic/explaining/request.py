"""The function to explain, and the number of changes that may be tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip, SliceShape
from systolic.compiler import NamedFunction
from systolic.timing.sliced import slice_of

Function = Callable[..., Any] | NamedFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """A function to explain."""

    fn: Function  # the function
    args: Sequence[Any]  # arrays or shapes
    arguments: tuple[str, ...]  # the same, as text
    chip: Chip  # the chip on which it is to run
    # Of a slice of such chips, "2x4", over which it is sharded; None: it runs on one device.
    topology: str | None = None
    against: Function | None = None  # another function of the same arguments, to compare with
    tries: int = 12  # the most changes to simulate
    try_mesh: bool = False  # simulate other meshes and shardings too, at most the same number
    xla_default_flags: bool = False  # compare with XLA's default flags only

    @property
    def shape(self) -> SliceShape | None:
        """The slice; None: one device."""
        return slice_of(self.chip, self.topology) if self.topology is not None else None
