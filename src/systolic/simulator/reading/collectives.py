"""What the HLO says of communication between devices: which operations, among whom."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from systolic.simulator.errors import SimulationError

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (?:\(.*?\)|\S+) ([\w\-]+)\((.*)$", re.ASCII)
_COMPUTATION = re.compile(r"(?:ENTRY )?%(\S+) \(", re.ASCII)
_CALLS = re.compile(r"\b(?:calls|body)=%([\w.\-]+)", re.ASCII)
_PARTITIONS = re.compile(r"\bnum_partitions=(\d{1,5})\b", re.ASCII)
_REPLICAS = re.compile(r"\breplica_count=(\d{1,5})\b", re.ASCII)

# Forms of the groups: listed; an iota, reshaped and perhaps transposed first; axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", re.ASCII)
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", re.ASCII)
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", re.ASCII)
_AXIS = re.compile(r"'([^']+)'=(\d+)", re.ASCII)
_NAME = re.compile(r"'([^']+)'", re.ASCII)

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"]
_DONE = "-done"

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCollective:
    """An operation that communicates, or one into which such an operation was fused.

    `groups` are partitions that communicate among themselves, in the order in which their parts are put together. They
    are empty where the text gives them in a form that is not known, and for permutations.
    """

    name: str
    kind: Kind
    groups: Groups = ()
    fused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHlo:
    """What the HLO says of devices.

    Attributes:
      partitions: devices that run the program, each on its part.
      replicas: copies of all that.
      collectives: operations that communicate, by name.
      permutes: names of those that are permutations, in the order in which the program comes to them.
    """

    partitions: int
    replicas: int
    collectives: Mapping[str, HloCollective]
    permutes: tuple[str, ...]


def parse_collectives(text: str) -> SliceHlo:
    """Reads what an HLO module says of communication.

    Raises:
      SimulationError: groups that are not of the devices that there are.
    """
    header = text.partition("\n")[0]
    partitions, replicas = (_count(each, header) for each in (_PARTITIONS, _REPLICAS))
    inside: dict[str, list[HloCollective]] = {}
    order: dict[str, list[tuple[str, str]]] = {}  # computation → (instruction, or "" and a computation that it runs)
    fusions: list[tuple[str, str]] = []
    computation = entry = ""
    for line in text.splitlines():
        begins = _COMPUTATION.match(line)
        if begins:
            computation = begins.group(1)
            entry = computation if line.startswith("ENTRY ") else entry
            inside[computation], order[computation] = [], []
            continue
        found = _INSTRUCTION.match(line)
        if found is None or computation not in inside:
            continue
        name, opcode, rest = found.groups()
        kind = next((each for each in get_args(Kind) if opcode.startswith(each)), None)
        if kind is not None and not opcode.endswith(_DONE):
            groups = () if kind == "collective-permute" else _groups(rest, partitions * replicas)
            inside[computation].append(HloCollective(name=name, kind=kind, groups=groups))
            order[computation].append((name, kind))
        elif called := _CALLS.search(rest):
            if opcode == "while":
                order[computation].append(("", called.group(1)))
            else:
                fusions.append((name, called.group(1)))
    collectives = {each.name: each for found in inside.values() for each in found}
    for name, called in fusions:
        for each in inside.get(called, ())[:1]:
            collectives[name] = HloCollective(name=name, kind=each.kind, groups=each.groups, fused=True)
    return SliceHlo(
        partitions=partitions,
        replicas=replicas,
        collectives=collectives,
        permutes=tuple(_permutes(entry, order, frozenset())),
    )


def _count(pattern: re.Pattern[str], header: str) -> int:
    found = pattern.search(header)
    return int(found.group(1)) if found else 1


def _permutes(computation: str, order: Mapping[str, list[tuple[str, str]]], above: frozenset[str]) -> Iterator[str]:
    for name, kind in order.get(computation, ()):
        if not name and kind not in above:
            yield from _permutes(kind, order, above | {computation})
        elif kind == "collective-permute":
            yield name


def _groups(text: str, count: int) -> Groups:
    if listed := _LISTED.search(text):
        found = tuple(
            tuple(int(number) for number in group.split(",") if number)
            for group in re.findall(r"\{([\d,]*)\}", listed.group(1))
        )
        groups = found or (tuple(range(count)),)
    elif iota := _IOTA.search(text):
        number, size, extents, order = iota.groups()
        groups = _iota_groups(number, size, extents, order, count)
    elif mesh := _MESH.search(text):
        axes, among = mesh.groups()
        groups = _mesh_groups(axes, among, count)
    else:
        return ()
    if sorted(itertools.chain.from_iterable(groups)) != list(range(count)) or len({len(each) for each in groups}) > 1:
        raise SimulationError(f"groups that are not of {count} devices: {text[:200]}")
    return groups


def _iota_groups(number: str, size: str, extents: str, order: str | None, count: int) -> Groups:
    shape = [int(extent) for extent in extents.split(",")]
    if math.prod(shape) != count or int(number) * int(size) != count:
        raise SimulationError(f"groups [{number},{size}]<=[{extents}] that are not of {count} devices")
    axes = [int(axis) for axis in order.split(",")] if order else list(range(len(shape)))
    flat = _flattened(shape, axes)
    return tuple(tuple(flat[begin : begin + int(size)]) for begin in range(0, count, int(size)))


def _mesh_groups(mesh: str, among: str, count: int) -> Groups:
    axes = _AXIS.findall(mesh)
    shape = [int(extent) for _, extent in axes]
    names = [name for name, _ in axes]
    chosen = _NAME.findall(among)
    if math.prod(shape) != count or not set(chosen) <= set(names):
        return ()
    inner = [names.index(name) for name in chosen]
    outer = [axis for axis in range(len(names)) if axis not in inner]
    size = math.prod(shape[axis] for axis in inner)
    flat = _flattened(shape, [*outer, *inner])
    return tuple(tuple(flat[begin : begin + size]) for begin in range(0, count, size))


def _flattened(shape: list[int], axes: list[int]) -> list[int]:
    """Numbers of a row-major array of that shape, read with its axes in another order."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return [
        sum(at * strides[axis] for at, axis in zip(place, axes, strict=True))
        for place in itertools.product(*(range(shape[axis]) for axis in axes))
    ]
