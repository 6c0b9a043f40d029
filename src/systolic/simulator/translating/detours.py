"""Scalar code on which devices diverge, between a branch and the meeting point of all its ways.

A device's target is often looked up in a tree of branches on its own number, and so is its next read, if arrays are not
cut into equal pieces for all devices. One device that represents all cannot take several ways. It takes such a detour
once for every device, with that device's words, and goes on at the meeting point: registers and scalar memory are put
together again, and copies within the device are the first one's.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from systolic.simulator.reading.blocks import Block
from systolic.simulator.translating.control_flow import dispatch

BRANCH = "if jump:"  # the line of a block's code that branches
# The methods of programs that it may call; see `simulator.device_detours`.
_MAY_CALL = (
    *("load", "store", "store_on_some", "own", "start", "wait", "early_wait", "add", "blocked"),
    *("operand", "parameter", "segment", "lap", "too_long"),
)
_MAX_BLOCKS = 256
_TEXT_OR_COMMENT = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|#.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detour:
    """A detour as a Python function.

    Attributes:
      taken, following: the branch's targets.
      run: (time, `DetourDevice`, block, registers read) → (time, registers written).
    """

    taken: int
    following: int
    run: Callable[..., Generator[int | None, None, tuple[Any, ...]]]


def with_detours(
    bodies: list[list[str]],
    blocks: Sequence[Block],
    variables: Set[str],
    called: Set[str],
    compiled: Callable[[str], Callable[..., Any]],
) -> dict[int, Detour]:
    """Find all detours of a program, and let its code take them, in place.

    Args:
      bodies: every block's code.
      variables: its registers.
      called: names that it calls.
      compiled: compiles the source of a function.
    """
    result: dict[int, Detour] = {}

    @functools.cache
    def effects_of(number: int) -> _Effects | None:
        # No block has changed by then: only those before it have been gone through.
        return _Effects.of(bodies[number], variables, called)

    for number, block in enumerate(blocks):
        end = _meeting_place(number, blocks)
        if end is None or BRANCH not in bodies[number] or block.taken is None or block.following is None:
            continue
        inside: list[_Effects] = []
        for inner in range(number + 1, end):
            effects = effects_of(inner)
            if effects is None:
                break
            inside.append(effects)
        if len(inside) < end - number - 1:
            continue
        written = sorted(set().union(*(effects.written for effects in inside)))
        read = sorted({*written, *set().union(*(effects.read for effects in inside))})
        source = [
            f"def detour(t, sequencer, block{''.join(f', {name}' for name in read)}):",
            *(f"    {name} = sequencer.{name}" for name in _MAY_CALL),
            *(f"    n{index} = 0" for index in range(number + 1, end)),
            "    iterations, limit = 0, sequencer.iterations.left",
            f"    while block < {end}:",
            *dispatch(bodies, number + 1, end, "        "),
            "    if iterations < 0:",  # never: one that yields nowhere has to be a generator too
            "        yield t",
            f"    return (t, {''.join(f'{name}, ' for name in written)})",
        ]
        result[number] = Detour(taken=block.taken, following=block.following, run=compiled("\n".join(source)))
        at = bodies[number].index(BRANCH)
        lines = bodies[number][at:]
        taken_apart = f"    t, {''.join(f'{name}, ' for name in written)} = yield from apart({number}, t, jump, "
        bodies[number][at:] = [
            "if type(jump) is Lanes:",
            f"{taken_apart}({''.join(f'{name}, ' for name in read)}))",
            f"    block = {end}",
            f"el{lines[0]}",
            *lines[1:],
        ]
    return result


def _meeting_place(number: int, blocks: Sequence[Block]) -> int | None:
    """Return the block to which all ways from a branch lead, if there is one and none leads back before the branch."""
    targets = (blocks[number].taken, blocks[number].following)
    if blocks[number].branch is None or any(target is None or target <= number for target in targets):
        return None
    end = max(target for target in targets if target is not None)
    inside = number + 1
    while inside < end:
        for target in (blocks[inside].taken if blocks[inside].branch is not None else None, blocks[inside].following):
            if target is not None and target <= number:
                return None
            end = max(end, target or 0)
        if blocks[inside].following is None or end - number > _MAX_BLOCKS:
            return None
        inside += 1
    return end if end > number + 1 else None


@dataclass(frozen=True, slots=True)
class _Effects:
    """Registers that a block's code reads and writes."""

    read: frozenset[str]
    written: frozenset[str]

    @staticmethod
    def of(body: Sequence[str], variables: Set[str], called: Set[str]) -> _Effects | None:
        """Return the effects of a block's code; None if it has others than on registers and scalar memory."""
        source = "\n".join(body)
        # Words are faster to look for than to parse.
        words = {"from", "return", *called} - set(_MAY_CALL)  # `yield from`
        if words.intersection(re.findall(r"\w+", _TEXT_OR_COMMENT.sub("", source))):
            return None
        names: Mapping[type, set[str]] = {ast.Load: set(), ast.Store: set()}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Name) and type(node.ctx) in names:
                names[type(node.ctx)].add(node.id)
        return _Effects(read=frozenset(names[ast.Load] & variables), written=frozenset(names[ast.Store] & variables))
