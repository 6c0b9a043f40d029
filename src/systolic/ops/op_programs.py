"""The programs of an op that `tune` and `bench` compile."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from systolic.schedule import KernelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Shardings:
    """The cuts of arguments and results over the mesh of `Op.mesh`, as `PartitionSpec`s; several results are a tree."""

    arguments: tuple[Any, ...]
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs that compute a spec. They can be pickled, because worker processes compile them."""

    computed: Any  # `Op.computed` of the spec, with the counts of the programs
    # A `jax.ShapeDtypeStruct` for each whole operand; an array if its values matter, such as group sizes.
    arguments: tuple[Any, ...]
    pallas: Callable[..., Any]  # the Pallas kernel, called with a configuration and the operands
    xla: Callable[..., Any]  # XLA's program
    # Over the mesh, whose axes are explicit for the kernel and left to XLA for its program; None: it runs on one
    # device.
    shardings: Shardings | None = None

    def kernel(self, config: KernelConfig) -> Callable[..., Any]:
        return functools.partial(self.pallas, config)


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedPrograms:
    """The programs that `bench` compares. They can be pickled, because worker processes compile them."""

    spec: Any  # the spec with the counts of the programs
    # A `jax.ShapeDtypeStruct` for each operand, as users have them; an array if its values matter.
    arguments: tuple[Any, ...]
    ours: Callable[..., Any]  # the user's call, with the planner's configuration
    xla: Callable[..., Any]  # plain JAX, as a user without systolic would write it
    # Other ways to write it, by name. The fastest of all counts.
    xla_forms: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    shardings: Shardings | None = None  # as in `Programs`


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A public kernel to race against."""

    name: str
    config: str = ""  # its configuration, if there is a choice
    # Takes `arguments`, on a slice with shardings, or XLA's arguments; None: there is none, and `reason` says why.
    program: Callable[..., Any] | None
    arguments: tuple[Any, ...] | None = None
    reason: str = ""
