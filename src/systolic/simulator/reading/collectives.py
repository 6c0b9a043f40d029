"""Read the communication between devices from the HLO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from systolic.compiler.replica_groups import Groups, groups_of

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", re.ASCII)
_COMPUTATION = re.compile(r"(?:ENTRY )?%(\S+) \(", re.ASCII)
_CALLS = re.compile(r"\b(?:calls|body)=%([\w.\-]+)", re.ASCII)
# A SparseCore runs the computation, concurrently with the program.
_LAUNCH, _LAUNCHED = "call-start", re.compile(r"\bto_apply=%([\w.\-]+)", re.ASCII)
_PARTITIONS = re.compile(r"\bnum_partitions=(\d{1,5})\b", re.ASCII)
_REPLICAS = re.compile(r"\breplica_count=(\d{1,5})\b", re.ASCII)

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"]
_DONE = "-done"
_GATHER_START = "all-gather-start"  # of v4: BarnaCores carry it
# Parts of a collective that other operations overlap: they are in the top-level program, as permutations are.
ASYNCHRONOUS = ("async-collective-start", "async-collective-done")
_RAGGED = "ragged-"  # prefix of a kind in which devices send different amounts
# Opcodes that only place, move or name data. With scalars, whatever is computed, they are the communication's own.
_MOVES = {
    "bitcast",
    "broadcast",
    "concatenate",
    "constant",
    "copy",
    "dynamic-slice",
    "dynamic-update-slice",
    "get-tuple-element",
    "iota",
    "pad",
    "parameter",
    "reshape",
    "slice",
    "transpose",
    "tuple",
}
_SCALAR = re.compile(r"\w+\[\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCollective:
    """An operation that communicates, or one into which such an operation was fused.

    Attributes:
      fused: it was fused with arithmetic, not only with slices and the like; or it runs beside other operations.
      ends_later: in another operation than it begins in.
      groups: partitions that exchange data, each group in its order; empty: not said.
    """

    name: str
    kind: Kind
    fused: bool = False
    ends_later: bool = False
    groups: Groups = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHlo:
    """The devices of a program, as the HLO gives them."""

    partitions: int  # devices that run the program, each on its part
    replicas: int  # copies of all partitions
    collectives: Mapping[str, HloCollective]  # operations that communicate, by name
    permutes: tuple[str, ...]  # names of those that are permutations, in the order of the program


def parse_collectives(text: str) -> SliceHlo:
    """Read the devices and the communication of an HLO module."""
    header = text.partition("\n")[0]
    partitions, replicas = (_count(pattern, header) for pattern in (_PARTITIONS, _REPLICAS))
    inside: dict[str, list[HloCollective]] = {}
    order: dict[str, list[tuple[str, str]]] = {}  # computation → (instruction, or "" and a computation that it runs)
    fusions: list[tuple[str, str]] = []
    computing: set[str] = set()  # computations with arithmetic beside their communication
    launched: set[str] = set()  # computations of SparseCores
    computation = entry = ""
    for line in text.splitlines():
        begins = _COMPUTATION.match(line)
        if begins:
            computation = begins.group(1)
            entry = computation if line.startswith("ENTRY ") else entry
            inside[computation], order[computation] = [], []
            continue
        match = _INSTRUCTION.match(line)
        if match is None or computation not in inside:
            continue
        name, shape, opcode, rest = match.groups()
        kind = next((arg for arg in get_args(Kind) if opcode.removeprefix(_RAGGED).startswith(arg)), None)
        if kind is None and opcode not in _MOVES and not _SCALAR.match(shape):
            computing.add(computation)
        if kind is not None and not opcode.endswith(_DONE):
            later = opcode == _GATHER_START
            groups = groups_of(rest, partitions)
            inside[computation].append(
                HloCollective(name=name, kind=kind, fused=later, ends_later=later, groups=groups)
            )
            order[computation].append((name, kind))
        elif called := (_LAUNCHED if opcode == _LAUNCH else _CALLS).search(rest):
            if opcode == "while":
                order[computation].append(("", called.group(1)))
            else:
                launched |= {called.group(1)} if opcode == _LAUNCH else set()
                fusions.append((name, called.group(1)))
    collectives = {collective.name: collective for members in inside.values() for collective in members}
    for name, called in fusions:
        for collective in inside.get(called, ())[:1]:
            fused = called in computing or called in launched or name.startswith(ASYNCHRONOUS)
            collectives[name] = replace(collective, name=name, fused=fused)
    return SliceHlo(
        partitions=partitions,
        replicas=replicas,
        collectives=collectives,
        permutes=tuple(_permutes(entry, order, frozenset())),
    )


def _count(pattern: re.Pattern[str], header: str) -> int:
    match = pattern.search(header)
    return int(match.group(1)) if match else 1


def _permutes(computation: str, order: Mapping[str, list[tuple[str, str]]], above: frozenset[str]) -> Iterator[str]:
    for name, kind in order.get(computation, ()):
        if not name and kind not in above:
            yield from _permutes(kind, order, above | {computation})
        elif kind == "collective-permute":
            yield name
