"""The `Op` protocol, by which planner, store, tuner, bench and command line know an op, and the registry of ops.

The ops of this package are listed in `registry.py`.
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
from systolic.support.choices import unknown_name
from systolic.support.untrusted import UntrustedError, shown, structured

_NAMES = re.compile(r"[\w<>., -]{0,200}")  # of functions, with commas
_OF_DTYPES = ("dtype", "kept_sum")  # in names of a spec's fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Legal configurations, best first, and the number that was compared."""

    configs: Sequence[TimedConfig]
    considered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The grid, the traffic and the memory of a configuration on one device."""

    axes: tuple[str, ...]  # names of the grid's axes, the outermost first; a "batch" of 1 is not shown
    grid: tuple[int, ...]  # steps along each axis
    hbm_bytes: int  # read and written by the kernel
    vmem_bytes: int  # of its buffers
    vmem_limit_bytes: int  # the limit to ask the compiler for
    # Versions that made the profiles for products of this kind; None: there are none.
    profiles: MadeWith | None = None
    link_bytes: int = 0  # sent over links to other devices of the slice

    def as_arguments(self) -> dict[str, Any]:
        """Return the fields by name, for a record that extends this one."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Layout)}


class Kept(Protocol):
    """A kind of spec that a store has trials of: a product, or a user's function."""

    name: str  # the name under which specs of this kind are stored
    spec_type: type[Any]  # the class of its specs

    @abstractmethod
    def words(self, spec: Any) -> tuple[str, str, str]:
        """Describe sizes, dtypes and fused operations, for people."""
        ...

    def described(self, spec: Any) -> Any:
        """Return the spec without the counts taken from its program: trials are stored under this."""
        return spec

    def mesh(self, spec: Any) -> SliceMesh | None:
        """Return the slice and the mesh over which the spec is cut; None: it runs on one device.

        It follows from the spec, so that trials of different slices are kept apart. On a slice `flops` and
        `least_hbm_bytes` of the spec, and all results of an op, are for one device.
        """
        return None


class Op(Kept, Protocol):
    """One kind of product, as planner, store, tuner, bench and command line use it.

    Below, `spec` is the user's product, and `computed` is the product that the kernel computes for it: perhaps turned,
    so that operands are read as they are stored. Configurations and trials belong to `computed`.

    Methods with a body suit an op on one chip that is completely described by its specs.
    """

    def computed(self, spec: Any) -> Any:
        """Return the product that the kernel computes."""
        return spec

    def counted(self, spec: Any) -> Any:
        """Return the spec with the counts of its programs, such as the operations of an activation. Needs JAX.

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
        """Return the configurations for `tune`: the most promising, and every legal one, with times of one model."""
        ...

    @abstractmethod
    def judge(self, computed: Any, config: KernelConfig, chip: Chip) -> TimedConfig:
        """Return a configuration with its time by the model of `search`; raise IllegalTilesError if it breaks rules."""
        ...

    @abstractmethod
    def least_time_us(self, computed: Any, config: KernelConfig, chip: Chip) -> float:
        """Return a lower bound of the time of a kernel with this configuration."""
        ...

    @abstractmethod
    def layout(self, computed: Any, config: KernelConfig, chip: Chip) -> Layout:
        """Return the grid, the traffic and the memory of a legal configuration."""
        ...

    def remarks(self, spec: Any, chip: Chip) -> list[str]:
        """Describe what else decides the time of a spec on a chip."""
        return []

    @abstractmethod
    def programs(self, spec: Any, chip: Chip) -> Programs:
        """Return the programs that `tune` compiles; raise SpecError if the spec does not describe the whole program."""
        ...

    @abstractmethod
    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        """Return the programs that `bench` compares; raise SpecError as `programs` does."""
        ...

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        """Yield public kernels to race against, with a reason for those that cannot be."""
        return ()


_OPS: dict[type[Any], Op] = {}
_KEPT: dict[type[Any], Kept] = {}  # the ops, and other kinds of specs that a store has trials of


def register(op: Op) -> None:
    """Register an op; it replaces one for the same kind of spec."""
    _OPS[op.spec_type] = op
    register_kept(op)


def register_kept(kind: Kept) -> None:
    """Register a kind of spec for stores; it replaces one of the same kind."""
    _KEPT[kind.spec_type] = kind


def op_of(spec: Spec) -> Op:
    """Return the op of a spec; raise SpecError if none is registered."""
    try:
        return _OPS[type(spec)]
    except KeyError:
        names = ", ".join(spec_type.__name__ for spec_type in _OPS)
        raise SpecError(f"no op computes a {type(spec).__name__}; there are ops for {names}") from None


def kept_as(spec: Any) -> Kept:
    """Return a store's name of a spec; raise SpecError if nothing is registered for it."""
    return _KEPT[type(spec)] if type(spec) in _KEPT else op_of(spec)


def record_of(spec: Spec) -> dict[str, Any]:
    """Return a spec as a record for JSON, with the name of its op."""
    return {"op": op_of(spec).name, "spec": dataclasses.asdict(cast(Any, spec))}


def read_spec(op_name: Any, record: Any) -> Any:
    """Return the spec in a record that `untrusted.read_json` has read; raise UntrustedError if it is not one."""
    op = next((op for op in _KEPT.values() if op.name == op_name), None)
    if op is None:
        raise UntrustedError(unknown_name("op", op_name, [op.name for op in _KEPT.values()]))
    spec = structured(record, op.spec_type)
    for path, value in leaves(dataclasses.asdict(spec)).items():
        if isinstance(value, str) and any(part in path for part in _OF_DTYPES):
            if not _is_dtype(value):
                raise UntrustedError(f"dtype {shown(value)} is not known")
        elif isinstance(value, str) and not _NAMES.fullmatch(value):
            raise UntrustedError(f"{path}={shown(value)} is not of its form")
        elif isinstance(value, (int, float)) and not 0 <= value <= LARGEST_SIZE:
            raise UntrustedError(f"{path}={shown(value)} is not an integer from 0 to {LARGEST_SIZE}")
    return spec


def _is_dtype(name: str) -> bool:
    """True for the full name of a dtype of numbers: NumPy also takes "f4", "O" and records."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return False
    return dtype.name == name and dtype.kind in "biufV" and dtype.type is not np.void


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        parts = [leaves(entry, f"{name}.{key}".strip(".")) for key, entry in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [leaves(entry, f"{name}[{at}]") for at, entry in enumerate(value)]
    else:
        return {name: value}
    return {path: leaf for part in parts for path, leaf in part.items()}
