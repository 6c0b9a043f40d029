"""Find the operation whose code another one shares.

Libtpu compiles equal operations once, and leaves the listing of one of them. Which operations are equal is read from
the scheduled HLO: those whose text differs only in names, in where they came from, and in what they wait for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

from systolic.compiler.replica_groups import with_groups

_PARTITIONS = re.compile(r"\bnum_partitions=(\d{1,5})\b", re.ASCII)
_HEADER = re.compile(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", re.ASCII)
_INSTRUCTION = re.compile(r"\s+(ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w\-]+\(.*)$", re.ASCII | re.DOTALL)
_NAME = re.compile(r"%([\w.\-]+)", re.ASCII)
_STRING = r'"(?:[^"\\]|\\.)*"'
_IGNORED = re.compile(
    rf", metadata=\{{(?:[^{{}}\"]|{_STRING})*\}}"
    r"|, control-predecessors=\{[^}]*\}"
    r"|, channel_id=\d+"
    rf"|, frontend_attributes=\{{(?:[^{{}}\"]|{_STRING})*\}}"
    # Operands that may overlap: code that is shared allows for those of all operations that share it.
    r'|"aliasing_operands":\{"lists":\[(?:\{"indices":\[[^\]]*\]\},?)*\]\},?'
)


def representatives(listed: Iterable[str], called: Iterable[str], hlo: str) -> dict[str, str]:
    """Return, for each called operation without a listing, the listed one whose code it shares.

    Args:
        listed: names of operations with a listing.
        called: names of operations that the program calls.
        hlo: the scheduled HLO, as text.

    An operation that equals no listed one is left out.
    """
    keys = operation_keys(hlo)
    by_key = {keys[name]: name for name in listed if name in keys}
    missing = sorted(set(called).difference(listed))
    return {name: by_key[keys[name]] for name in missing if keys.get(name) in by_key}


def operation_keys(hlo: str) -> dict[str, str]:
    """Return a hash of each instruction, by name. Instructions that the compiler can give the same code have the same.

    It covers the operation, its attributes, shapes and layouts of its result and operands, and what it calls. That two
    operands are the same value makes no difference: the code is handed it twice. Nor does the way in which groups of
    devices are written.
    """
    header = _PARTITIONS.search(hlo.partition("\n")[0])
    partitions = 1 if header is None else int(header[1])
    keys: dict[str, str] = {}
    bodies: dict[str, str] = {}  # hashes of computations; HLO's text has those that are called before their callers
    for computation, instructions in _computations(hlo):
        shapes: dict[str, str] = {}
        values: dict[str, str] = {}  # hashes of what each instruction computes from the parameters
        root = ""
        for is_root, name, shape, rest in instructions:
            text = with_groups(_IGNORED.sub("", rest), partitions, str)
            operands = {other: shapes[other] for other in _NAME.findall(text) if other in shapes}
            keys[name] = _hash(shape, _replaced(text, {**bodies, **operands}))
            values[name] = _hash(shape, _replaced(text, {**bodies, **values}))
            shapes[name] = shape
            root = values[name] if is_root else root
        # The order of the instructions differs between equal computations.
        bodies[computation] = _hash(root, *sorted(values.values()))
    return keys


def _computations(hlo: str) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield each computation's name and instructions: "ROOT " or not, name, shape of the result, and the rest."""
    computation, texts = "", []
    for line in hlo.splitlines():
        if (header := _HEADER.match(line)) is not None:
            computation, texts = header[1], []
        elif line == "}" and computation:
            matches = (_INSTRUCTION.match(text) for text in texts)
            yield computation, [match.groups("") for match in matches if match is not None]
            computation = ""
        elif _INSTRUCTION.match(line) is not None:
            texts.append(line)
        elif texts:
            texts[-1] += f"\n{line}"  # a kernel's description takes several lines


def _replaced(text: str, by_name: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: by_name.get(match[1], match[0]), text)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
