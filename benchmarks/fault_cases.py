"""Shared parts of the sections of `faults.py`: programs that cases mutate, and mutations of text, bytes and JSON."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp

import systolic
from systolic.chips import CHIPS
from systolic.compiler import CompiledProgram, ProgramCache, WorkerPool, submit_compilation
from systolic.ops.engine.backend import Implementation
from systolic.timing import target_of

Attempt = Callable[[random.Random, Path, "Setting"], None]

# A program of each kind that the readers know: one core and two, an early copy, v7x's branches; XLA's and a kernel's.
_PROGRAMS: tuple[tuple[str, Implementation, int], ...] = (
    ("v5e", "xla", 512),
    ("v5p", "xla", 256),
    ("v6e", "pallas", 512),
    ("v7x", "pallas", 256),
)
_TILES = (128, 128, 128)

# Leaves that no document should hold, and others that it may.
HOSTILE_VALUES = [
    *("null", "true", "false", "-1", "0", "-0.0", "5e-324", "1e308", "1e999", "-1e999", "NaN", "Infinity", "1.5"),
    *("9223372036854775808", "1" + "0" * 400, "[]", "[[]]", "{}", '{"a": {}}', '""', '"5.0"', '"bfloat16"'),
    *('"[/bold]"', '"[bold red]"', '"\\ud800"', '"\\u0000"', '"\\u001b[31m"', '"../../outside"', '"%s%n"'),
    *('"' + "x" * 100_000 + '"', "[" * 5_000 + "]" * 5_000),
]
_TOKEN = re.compile(r"-?\w+|\S")
_NUMBERS = ("0", "-1", "1", "4294967295", "4294967296", "99999999999999999999", "0x7fffffff", "-2147483649", "3.5")


class CaseError(AssertionError):
    """A case that ended in another way than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Programs of the real compiler, by chip, made once before all cases."""

    programs: dict[str, CompiledProgram]

    @classmethod
    def made(cls) -> Self:
        """Compile the programs, or read them from the cache."""

        with WorkerPool() as pool:
            futures = {}
            for name, implementation, size in _PROGRAMS:
                shape = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
                tiles = _TILES if implementation == "pallas" else None
                fn = functools.partial(
                    systolic.matmul, activation="tanh", implementation=implementation, chip=name, tiles=tiles
                )
                target = target_of(CHIPS[name])
                futures[name] = submit_compilation(pool, fn, (shape, shape), target, cache=ProgramCache())
            return cls(programs={name: future.result() for name, future in futures.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One kind of fault.

    Attributes:
      name: on the command line.
      tries: the attempt, in a few words.
      share: of all cases, relative to the other sections' shares.
      attempt: run one case in an empty folder; raises where the case fails.
    """

    name: str
    tries: str
    share: int
    attempt: Attempt


def damaged(data: bytes, choose: random.Random) -> bytes:
    """Return a file's bytes with bits flipped, or parts overwritten, cut off, moved, inserted or removed."""
    content = bytearray(data or b"\0")
    kind = choose.randrange(7)
    at = choose.randrange(len(content))
    length = min(choose.choice((1, 4, 64, 512, 4096)), len(content) - at)
    if kind == 0:
        for _ in range(choose.choice((1, 1, 2, 8, 64))):
            content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    elif kind == 1:
        content[at : at + length] = choose.randbytes(length)
    elif kind == 2:
        content[at : at + length] = bytes([choose.choice((0, 0xFF, 0x20))]) * length
    elif kind == 3:
        del content[at:]
    elif kind == 4:
        del content[at : at + length]
    elif kind == 5:
        content[at:at] = choose.randbytes(length)
    else:
        other = choose.randrange(len(content))
        content[at : at + length] = content[other : other + length]
    return bytes(content)


def mutated_text(text: str, choose: random.Random) -> str:
    """Return text with lines or words lost, doubled, swapped or replaced, numbers made extreme, or its end cut off."""
    lines = text.split("\n")
    for _ in range(choose.choice((1, 1, 1, 2, 5))):
        at = choose.randrange(len(lines))
        kind = choose.randrange(9)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, choose.choice(lines))
        elif kind == 2:
            other = choose.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            del lines[at:]
        elif kind == 4:
            line = lines[at]
            cut = choose.randrange(len(line) + 1)
            lines[at] = (
                line[:cut]
                + choose.choice(("", "\0", "é", "\ud800", "{", "}", "%", ";;", "/*", "*/", "  "))
                + line[cut:]
            )
        else:
            tokens = list(_TOKEN.finditer(lines[at]))
            if tokens:
                token = choose.choice(tokens)
                others = _TOKEN.findall(choose.choice(lines)) or ["0"]
                new = choose.choice((choose.choice(_NUMBERS), choose.choice(others), ""))
                lines[at] = lines[at][: token.start()] + new + lines[at][token.end() :]
        lines = lines or [""]
    return "\n".join(lines)


def mutated_json(document: Any, choose: random.Random) -> bytes:
    """Return the text of a JSON document with a leaf, a key or some bytes changed."""
    if choose.random() < 0.15:
        return damaged(json.dumps(document).encode(), choose)
    paths = list(_paths(document))
    chosen_path = choose.choice(paths)
    hostile = choose.choice(HOSTILE_VALUES)
    if choose.random() < 0.05:
        hostile = "[" * 100_000 + "]" * 100_000
    kind = choose.randrange(5)

    def written(value: Any, path: tuple[Any, ...]) -> str:
        if path == chosen_path and kind > 1:
            return hostile
        if isinstance(value, dict):
            pairs = []
            for key, item in value.items():
                name, text = json.dumps(key), written(item, (*path, key))
                if (*path, key) == chosen_path and kind == 0:
                    continue
                if (*path, key) == chosen_path and kind == 1:
                    pairs.append(f"{choose.choice((name, json.dumps(key + 's')))}: {hostile}")
                pairs.append(f"{name}: {text}")
            return "{" + ", ".join(pairs) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(written(item, (*path, at)) for at, item in enumerate(value)) + "]"
        return json.dumps(value)

    return written(document, ()).encode("utf-8", "surrogatepass")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _paths(item, (*path, at))
