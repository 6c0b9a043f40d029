"""What each op tells of itself, so that planner, store, tuner, bench and command line work on any of them.

A kind of spec and what is known of it are one record here. `registry.py` has the table of this package's ops.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from systolic.chips import Chip
from systolic.cost import MadeWith, TimedConfig
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import LARGEST_SIZE, Spec, SpecError
from systolic.support.untrusted import UntrustedError, shown, structured

_NAMES = re.compile(r"[\w<>., -]{0,200}")  # of functions, with commas
_OF_DTYPES = ("dtype", "kept_sum")  # in names of a spec's fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Legal configurations, best first, and how many were compared."""

    configs: Sequence[TimedConfig]
    considered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a configuration comes to on a chip.

    Attributes:
      axes: names of those of the grid, the outermost first; one "batch" of 1 is not shown.
      grid: steps along each of them.
      hbm_bytes: that the kernel moves.
      vmem_bytes: of its buffers.
      vmem_limit_bytes: to ask the compiler for.
      profiles: what made the profiles for products of this kind; None: there are none.
    """

    axes: tuple[str, ...]
    grid: tuple[int, ...]
    hbm_bytes: int
    vmem_bytes: int
    vmem_limit_bytes: int
    profiles: MadeWith | None = None


class Programs(Protocol):
    """The programs that compute a spec, and their arguments' shapes and dtypes."""

    @property
    def computed(self) -> Any:
        """As `Op.computed`, with what is counted of the programs."""
        ...

    @property
    def arguments(self) -> tuple[Any, ...]:
        """A `jax.ShapeDtypeStruct` for each operand; an array where values decide, such as sizes of groups."""
        ...

    def kernel(self, config: KernelConfig) -> Callable[..., Any]:
        """The Pallas kernel; it can be pickled, for a worker compiles it."""
        ...

    def xla(self) -> Callable[..., Any]:
        """The same by XLA."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedPrograms:
    """What `bench` compares. Programs can be pickled, for workers compile them.

    Attributes:
      spec: with what is counted of the programs.
      arguments: a `jax.ShapeDtypeStruct` for each operand, as users have them; an array where values decide.
      ours: what a user calls, with the planner's configuration.
      xla: what somebody would write in plain JAX who does not know it.
      xla_forms: other ways to write it, by their names. The fastest of all counts.
      xla_arguments: the same arguments as XLA's programs take them, where a mesh is left to XLA; None: `arguments`.
    """

    spec: Any
    arguments: tuple[Any, ...]
    ours: Callable[..., Any]
    xla: Callable[..., Any]
    xla_forms: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    xla_arguments: tuple[Any, ...] | None = None


class Kept(Protocol):
    """One kind of thing that a store has trials of: a product, or a function of somebody's."""

    @property
    def name(self) -> str:
        """Under which specs of this kind are stored."""
        ...

    @property
    def spec_type(self) -> type[Any]:
        """The class of its specs."""
        ...

    def words(self, spec: Any) -> tuple[str, str, str]:
        """Sizes, dtypes and what is fused, for people."""
        ...

    def described(self, spec: Any) -> Any:
        """The spec without what is counted of a program: trials are kept under this."""
        ...


class Op(Kept, Protocol):
    """One kind of product.

    `spec` in what follows is what a user asks for, and `computed` what the kernel computes for it: perhaps turned, so
    that operands are read as they are stored. Configurations and trials are of the latter.
    """

    def computed(self, spec: Any) -> Any:
        """What the kernel computes."""
        ...

    def plan(self, spec: Any, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        """The fastest configurations by arithmetic; of these tiles, or this configuration, only.

        Raises:
          IllegalTilesError: the tiles break rules, or nothing is legal.
        """
        ...

    def search(self, computed: Any, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        """What `tune` tries: the most promising, and every legal configuration, with times of one model."""
        ...

    def judge(self, computed: Any, config: KernelConfig, chip: Chip) -> TimedConfig:
        """A configuration from elsewhere, with the time of the model of `search`.

        Raises:
          IllegalTilesError: it breaks rules; the message has each of them.
        """
        ...

    def least_time_us(self, computed: Any, config: KernelConfig, chip: Chip) -> float:
        """A time below which no kernel with this configuration can be."""
        ...

    def layout(self, computed: Any, config: KernelConfig, chip: Chip) -> Layout:
        """What a legal configuration comes to."""
        ...

    def remarks(self, spec: Any, chip: Chip) -> list[str]:
        """What else decides the time of a spec on a chip, in words."""
        ...

    def programs(self, spec: Any, chip: Chip) -> Programs:
        """What to compile.

        Raises:
          SpecError: the description does not hold all of the program, such as a function that systolic has no name for.
        """
        ...

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        """What to compare.

        Raises:
          SpecError: as `programs`.
        """
        ...


_OPS: dict[type[Any], Op] = {}
_KEPT: dict[type[Any], Kept] = {}  # the ops, and what else a store has trials of


def register(op: Op) -> None:
    """Makes an op known; one of the same kind of spec is replaced."""
    _OPS[op.spec_type] = op
    register_kept(op)


def register_kept(kept: Kept) -> None:
    """Makes a kind of thing known to stores; one of the same kind of spec is replaced."""
    _KEPT[kept.spec_type] = kept


def op_of(spec: Spec) -> Op:
    """The op of a spec.

    Raises:
      SpecError: none is registered for it.
    """
    try:
        return _OPS[type(spec)]
    except KeyError:
        known = ", ".join(one.__name__ for one in _OPS)
        raise SpecError(f"no op computes a {type(spec).__name__}; there are ops for {known}") from None


def kept_as(spec: Any) -> Kept:
    """How a store names a spec.

    Raises:
      SpecError: nothing is registered for it.
    """
    return _KEPT[type(spec)] if type(spec) in _KEPT else op_of(spec)


def record_of(spec: Spec) -> dict[str, Any]:
    """A spec to be written as JSON, with the name of its op."""
    return {"op": op_of(spec).name, "spec": dataclasses.asdict(cast(Any, spec))}


def read_spec(op_name: Any, record: Any) -> Any:
    """A spec out of what `untrusted.read_json` has read of it: its numbers count something, its texts are names.

    Raises:
      UntrustedError: it is none; or there is no such op, or no such dtype.
    """
    op = next((op for op in _KEPT.values() if op.name == op_name), None)
    if op is None:
        raise UntrustedError(
            f"op {shown(op_name)} is not known; known are {', '.join(op.name for op in _KEPT.values())}"
        )
    spec = structured(record, op.spec_type)
    for path, value in leaves(dataclasses.asdict(spec)).items():
        if isinstance(value, str) and any(part in path for part in _OF_DTYPES):
            if not _is_dtype(value):
                raise UntrustedError(f"dtype {shown(value)} is not known")
        elif isinstance(value, str) and not _NAMES.fullmatch(value):
            raise UntrustedError(f"{path}={shown(value)} is not of its form")
        elif isinstance(value, (int, float)) and not 0 <= value <= LARGEST_SIZE:
            raise UntrustedError(f"{path}={shown(value)} is no count from 0 to {LARGEST_SIZE}")
    return spec


def _is_dtype(name: str) -> bool:
    """Whether it is the full name of a dtype of numbers: NumPy also takes "f4", "O" and records."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return False
    return dtype.name == name and dtype.kind in "biufV" and dtype.type is not np.void


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Leaves of nested records by their path."""
    if isinstance(value, dict):
        parts = [leaves(one, f"{name}.{key}".strip(".")) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [leaves(one, f"{name}[{at}]") for at, one in enumerate(value)]
    else:
        return {name: value}
    return {path: leaf for part in parts for path, leaf in part.items()}
