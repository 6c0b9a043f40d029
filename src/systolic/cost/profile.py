"""The simulated cost of a kernel's step on a chip, from which the time of any shape follows.

Profiles are shipped in `cost/profiles/`, one file for each kind, written by `systolic table profile`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from systolic.chips import Chip
from systolic.schedule.config import KernelConfig, Pipeline
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec
from systolic.support.printable import printable
from systolic.support.ranges import Amount, Count
from systolic.support.untrusted import UntrustedError, mapping, read_json, shown, structured

PROFILE_SCHEMA = 2  # of the shipped files


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Cycles of one core if no copy takes any time."""

    call: Amount  # the program around the steps
    # The very first step, which adds up its products chunk by chunk if there are `fill_chunks`.
    first: Amount
    step: Amount  # any other step
    # Any other step that ends an output tile, where the epilogue may be code of its own.
    end: Amount


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ProfiledTile:
    """A tile with its subtiles. Stages and the order of the grid change a step by less than half a per cent."""

    tiles: Tiles
    subtile_m: Count
    subtile_n: Count
    whole_k: bool  # True if one tile covers all of k: nothing is added up, by code of its own
    pipeline: Pipeline
    fill_chunks: Count  # chunks of the first step

    @classmethod
    def of(cls, spec: MatmulSpec, config: KernelConfig) -> ProfiledTile:
        return cls(
            tiles=config.tiles,
            subtile_m=config.subtile_m,
            subtile_n=config.subtile_n,
            whole_k=config.tiles.tile_k >= spec.k,
            pipeline=config.pipeline,
            fill_chunks=config.fill_chunks,
        )

    @property
    def config(self) -> KernelConfig:
        """A kernel with this tile, and the default number of stages and order of the grid."""
        return KernelConfig(
            tiles=self.tiles,
            subtile_m=self.subtile_m,
            subtile_n=self.subtile_n,
            pipeline=self.pipeline,
            fill_chunks=self.fill_chunks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A tile, the cost of its steps, and the length of its program."""

    tile: ProfiledTile
    cost: StepCost
    bundles: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The properties except the tile that decide a step's cost; `epilogue` names a function of the sum, or is ""."""

    chip: str
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str
    precision: str
    epilogue: str

    @classmethod
    def of(cls, spec: MatmulSpec, chip: Chip) -> Kind | None:
        """Return the kind of a product; None if it is not profiled, as fused, turned or stacked operands cost more."""
        fused = len(spec.operands.present()) > 2 or len(spec.dtypes_out) > 1 or spec.lhs_prologue or spec.rhs_prologue
        if fused or spec.transpose_lhs or spec.transpose_rhs or spec.batch > 1:
            return None
        return cls(
            chip=chip.generation,
            dtype_lhs=spec.dtype_lhs,
            dtype_rhs=spec.dtype_rhs,
            dtype_out=spec.dtype_out,
            precision=spec.precision,
            epilogue=spec.epilogue.activation,
        )


_COLUMNS = ("tile_m", "tile_k", "tile_n", "subtile_m", "subtile_n", "whole_k", "pipeline", "fill_chunks")
_COSTS = ("call", "first", "step", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWith:
    """Versions of the compiler that made the profiled programs."""

    jax: str
    libtpu: str

    def __str__(self) -> str:
        return f"jax {self.jax} and libtpu {self.libtpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """All profiles of a kind, and the versions that made them."""

    kind: Kind
    kernel_version: int
    jax: str
    libtpu: str
    command: str
    profiles: tuple[Profile, ...]

    @property
    def made_with(self) -> MadeWith:
        return MadeWith(jax=self.jax, libtpu=self.libtpu)

    @property
    def file_name(self) -> str:
        return _file_name(self.kind)

    def as_json(self) -> str:
        """Return sorted JSON with one line for each tile, for people to read and compare."""
        head: dict[str, Any] = {
            "schema": PROFILE_SCHEMA,
            "command": self.command,
            "versions": {"kernel": self.kernel_version, "jax": self.jax, "libtpu": self.libtpu},
            "kind": dataclasses.asdict(self.kind),
            "columns": [*_COLUMNS, *_COSTS, "bundles"],
        }
        lines = [json.dumps(_row(profile)) for profile in sorted(self.profiles, key=lambda profile: profile.tile)]
        text = json.dumps(head, indent=1).removesuffix("\n}")
        return f'{text},\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Profiles:
        """Read the output of `as_json`; raise ValueError for other text, or another schema."""
        try:
            document = mapping(read_json(text), "it")
            if (schema := document.get("schema", 1)) != PROFILE_SCHEMA:
                fix = f"make them anew with {printable(structured(document.get('command'), str))}"
                raise ValueError(f"these are profiles of schema {shown(schema)}, here it is {PROFILE_SCHEMA}; {fix}")
            content = structured(document, _Content)
            rows = [_profile_record(content.columns, row) for row in content.rows]
            return cls(
                kind=content.kind,
                kernel_version=content.versions.kernel,
                jax=content.versions.jax,
                libtpu=content.versions.libtpu,
                command=content.command,
                profiles=structured(rows, tuple[Profile, ...]),
            )
        except UntrustedError as error:
            raise ValueError(f"these are not profiles of tiles: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versions:
    kernel: Count
    jax: str
    libtpu: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    schema: int
    command: str
    versions: _Versions
    kind: Kind
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@functools.cache
def shipped_profiles(kind: Kind) -> Profiles | None:
    """Return the profiles of a kind that come with the package; None if there are none."""
    names = {file.name: file for file in (resources.files(str(__package__)) / "profiles").iterdir()}
    file = names.get(_file_name(kind))
    if file is None:
        return None
    profiles = Profiles.from_json(file.read_text(encoding="utf-8"))
    return profiles if profiles.kind == kind else None


@functools.cache
def shipped_costs(kind: Kind) -> dict[ProfiledTile, StepCost]:
    """Return the costs of all tiles of a kind; also of chunked tiles in one chunk, with `step` as their first step."""
    result: dict[ProfiledTile, StepCost] = {}
    shipped = shipped_profiles(kind)
    for profile in shipped.profiles if shipped is not None else ():
        result[profile.tile] = profile.cost
        if profile.tile.fill_chunks > 1:
            first = profile.cost.end if profile.tile.whole_k else profile.cost.step
            unchunked = dataclasses.replace(profile.tile, fill_chunks=1)
            result.setdefault(unchunked, dataclasses.replace(profile.cost, first=first))
    return result


def _file_name(kind: Kind) -> str:
    dtypes = "_".join(dict.fromkeys((kind.dtype_lhs, kind.dtype_rhs, kind.dtype_out)))
    suffix = "".join(f"_{word}" for word in (kind.precision, kind.epilogue) if word not in ("", "default"))
    return f"{kind.chip}_{dtypes}{suffix}.json"


def _row(profile: Profile) -> list[float | bool | str]:
    tile, cost = profile.tile, profile.cost
    sides = (tile.tiles.tile_m, tile.tiles.tile_k, tile.tiles.tile_n, tile.subtile_m, tile.subtile_n)
    cycles = (getattr(cost, name) for name in _COSTS)  # nearly always whole
    rounded = [int(cycle) if cycle == int(cycle) else round(cycle, 1) for cycle in cycles]
    return [*sides, tile.whole_k, tile.pipeline, tile.fill_chunks, *rounded, profile.bundles]


def _profile_record(columns: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    if columns != (*_COLUMNS, *_COSTS, "bundles") or len(values) != len(columns):
        raise UntrustedError(f"a row of {len(values)} values has not the columns of this version")
    row = dict(zip(columns, values, strict=True))
    return {
        "tile": {"tiles": {name: row[name] for name in _COLUMNS[:3]}, **{name: row[name] for name in _COLUMNS[3:]}},
        "cost": {name: row[name] for name in _COSTS},
        "bundles": row["bundles"],
    }
