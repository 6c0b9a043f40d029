"""The `Op` protocol, by which planner, store, tuner, bench and command line know an op, and the registry of ops.

`registry.py` has the table of this package's ops.
"""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from systolic.chips import Chip
from systolic.cost import MadeWith, TimedConfig
from systolic.ops.op_programs import Peer, Programs, RacedPrograms
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import LARGEST_SIZE, SliceMesh, Spec, SpecError
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
    """The grid, the traffic and the memory of a configuration on one device.

    Attributes:
      axes: names of the grid's axes, the outermost first; a "batch" of 1 is not shown.
      grid: steps along each axis.
      hbm_bytes: read and written by the kernel.
      vmem_bytes: of its buffers.
      vmem_limit_bytes: the limit to ask the compiler for.
      profiles: what made the profiles for products of this kind; None: there are none.
      link_bytes: sent over links to other devices of the slice.
    """

    axes: tuple[str, ...]
    grid: tuple[int, ...]
    hbm_bytes: int
    vmem_bytes: int
    vmem_limit_bytes: int
    profiles: MadeWith | None = None
    link_bytes: int = 0


class Kept(Protocol):
    """One kind of thing that a store has trials of: a product, or a function of somebody's.

    Attributes:
      name: under which specs of this kind are stored.
      spec_type: the class of its specs.
    """

    name: str
    spec_type: type[Any]

    @abstractmethod
    def words(self, spec: Any) -> tuple[str, str, str]:
        """Return sizes, dtypes and what is fused, for people."""
        ...

    def described(self, spec: Any) -> Any:
        """Return the spec without what is counted of a program: trials are kept under this."""
        return spec

    def mesh(self, spec: Any) -> SliceMesh | None:
        """Return the slice that it is cut over, and the mesh; None: it runs on one device.

        It follows from the spec, so that trials of a slice are not those of another. On a slice `flops` and
        `least_hbm_bytes` of the spec, and all that an op says of it, are those of one device.
        """
        return None


class Op(Kept, Protocol):
    """One kind of product, as planner, store, tuner, bench and command line know it.

    `spec` in what follows is what a user asks for, and `computed` what the kernel computes for it: perhaps turned, so
    that operands are read as they are stored. Configurations and trials are of the latter.

    Methods with a body are right for an op on one chip whose specs describe all of it.
    """

    def computed(self, spec: Any) -> Any:
        """Return what the kernel computes."""
        return spec

    def counted(self, spec: Any) -> Any:
        """Return the spec with what is counted of its programs, such as the operations of an activation. Needs JAX.

        Raises:
          SpecError: no program is known for it.
        """
        return spec

    @abstractmethod
    def plan(self, spec: Any, chip: Chip, tiles: Tiles | KernelConfig | None) -> Candidates:
        """Return the fastest configurations by arithmetic; only those with these tiles, or only this configuration.

        Raises:
          IllegalTilesError: the tiles break rules, or nothing is legal.
        """
        ...

    @abstractmethod
    def search(self, computed: Any, chip: Chip) -> tuple[list[TimedConfig], list[TimedConfig]]:
        """Return what `tune` tries: the most promising, and every legal configuration, with times of one model."""
        ...

    @abstractmethod
    def judge(self, computed: Any, config: KernelConfig, chip: Chip) -> TimedConfig:
        """Return a configuration from elsewhere, with the time of the model of `search`.

        Raises:
          IllegalTilesError: it breaks rules; the message has each of them.
        """
        ...

    @abstractmethod
    def least_time_us(self, computed: Any, config: KernelConfig, chip: Chip) -> float:
        """Return a time below which no kernel with this configuration can be."""
        ...

    @abstractmethod
    def layout(self, computed: Any, config: KernelConfig, chip: Chip) -> Layout:
        """Return the grid, the traffic and the memory of a legal configuration."""
        ...

    def remarks(self, spec: Any, chip: Chip) -> list[str]:
        """Return what else decides the time of a spec on a chip, in words."""
        return []

    @abstractmethod
    def programs(self, spec: Any, chip: Chip) -> Programs:
        """Return what `tune` compiles.

        Raises:
          SpecError: the description does not hold all of the program, such as a function that systolic has no name for.
        """
        ...

    @abstractmethod
    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        """Return what `bench` compares.

        Raises:
          SpecError: as `programs`.
        """
        ...

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        """Yield public kernels to race against, with a reason for those that cannot be."""
        return ()


_OPS: dict[type[Any], Op] = {}
_KEPT: dict[type[Any], Kept] = {}  # the ops, and what else a store has trials of


def register(op: Op) -> None:
    """Make an op known; one of the same kind of spec is replaced."""
    _OPS[op.spec_type] = op
    register_kept(op)


def register_kept(kept: Kept) -> None:
    """Make a kind of thing known to stores; one of the same kind of spec is replaced."""
    _KEPT[kept.spec_type] = kept


def op_of(spec: Spec) -> Op:
    """Return the op of a spec.

    Raises:
      SpecError: none is registered for it.
    """
    try:
        return _OPS[type(spec)]
    except KeyError:
        names = ", ".join(spec_type.__name__ for spec_type in _OPS)
        raise SpecError(f"no op computes a {type(spec).__name__}; there are ops for {names}") from None


def kept_as(spec: Any) -> Kept:
    """Return how a store names a spec.

    Raises:
      SpecError: nothing is registered for it.
    """
    return _KEPT[type(spec)] if type(spec) in _KEPT else op_of(spec)


def record_of(spec: Spec) -> dict[str, Any]:
    """Return a spec to be written as JSON, with the name of its op."""
    return {"op": op_of(spec).name, "spec": dataclasses.asdict(cast(Any, spec))}


def read_spec(op_name: Any, record: Any) -> Any:
    """Return a spec out of what `untrusted.read_json` has read of it: numbers are counts, texts are names.

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
    """True for the full name of a dtype of numbers: NumPy also takes "f4", "O" and records."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return False
    return dtype.name == name and dtype.kind in "biufV" and dtype.type is not np.void


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of nested records by their path."""
    if isinstance(value, dict):
        parts = [leaves(entry, f"{name}.{key}".strip(".")) for key, entry in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [leaves(entry, f"{name}[{at}]") for at, entry in enumerate(value)]
    else:
        return {name: value}
    return {path: leaf for part in parts for path, leaf in part.items()}
