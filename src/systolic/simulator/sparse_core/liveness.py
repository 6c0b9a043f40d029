"""Leave out the values that decide nothing: most scalar code of a SparseCore computes addresses.

Much of it stands under conditions, as the last round of a loop sends nothing on. So a register may be alive under one
condition only: then what it gets under the opposite one is left out as well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from systolic.simulator.sparse_core.blocks import SparseBlock
from systolic.simulator.sparse_core.code import BundleCode, Condition

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_VARIABLE = re.compile(r"\b(?:[spwx]\d+|m_\w+)\b", re.ASCII)

_Alive = defaultdict[str, set[Condition | None]]  # the conditions under which a register is read; None: always


def leave_out_dead_values(blocks: Sequence[SparseBlock], code: Sequence[Sequence[BundleCode]]) -> list[frozenset[str]]:
    """Remove the new values of registers that no event, effect or branch depends on.

    Args:
      code: of each block, its bundles'.

    Returns:
      The registers that are read after each block's begin before they get a value.
    """
    bundles = [[_Bundle(bundle) for bundle in reversed(of_block) if not bundle.is_empty] for of_block in code]
    alive_at = [_Alive(set) for _ in blocks]  # where a block begins
    before: list[set[int]] = [set() for _ in blocks]
    for index, block in enumerate(blocks):
        for target in (block.taken, block.following):
            if target is not None:
                before[target].add(index)
    waiting = set(range(len(blocks)))
    while waiting:
        index = max(waiting)
        waiting.remove(index)
        alive = _Alive(set)
        for target in (blocks[index].taken, blocks[index].following):
            if target is not None:
                for name, conditions in alive_at[target].items():
                    alive[name] |= conditions
        for bundle in bundles[index]:
            bundle.go_back(alive)
        if alive != alive_at[index]:
            alive_at[index] = alive
            waiting |= before[index]
    for of_block in bundles:
        for bundle in of_block:
            bundle.leave_out()
    return [frozenset(name for name, conditions in alive.items() if conditions) for alive in alive_at]


class _Bundle:
    """The registers that a bundle reads for what it does, and for each of its new values."""

    def __init__(self, code: BundleCode) -> None:
        self._code = code
        self._done = _Alive(set)
        for step in (*code.events, *code.effects):
            _read(self._done, registers_in("\n".join(step.code)), step.condition)
        self._values: dict[str, tuple[Condition | None, frozenset[str]]] = {}
        for name, value in code.values.items():
            if value.otherwise == name:
                self._values[name] = value.condition, registers_in(value.code)
            else:  # two values, one of which it gets
                self._values[name] = None, registers_in(value.expression())
        self._predicates = [name for name in code.values if name[0] == "p"]
        self._counting: list[str] = []

    def go_back(self, alive: _Alive) -> None:
        """Change the registers alive after the bundle into those before it."""
        for predicate in self._predicates:  # conditions were those of its new value
            both = {(predicate, True), (predicate, False)}
            for name, conditions in alive.items():
                if not conditions.isdisjoint(both):
                    alive[name] = conditions - both | {None}
        self._counting = [name for name, (condition, _) in self._values.items() if _is_alive(alive, name, condition)]
        after = {name: alive.pop(name) for name in self._counting}
        for name, conditions in after.items():
            condition, read = self._values[name]
            _read(alive, read, condition)
            if condition is not None:
                opposite = (condition[0], not condition[1])
                alive[name] |= {opposite if other is None else other for other in conditions if other != condition}
        for name, conditions in self._done.items():
            alive[name] |= conditions

    def leave_out(self) -> None:
        """Remove the values that did not count when registers were last followed."""
        self._code.values = {name: self._code.values[name] for name in self._counting}


def _read(alive: _Alive, names: frozenset[str], condition: Condition | None) -> None:
    for name in names:
        alive[name].add(condition)
    if condition is not None:
        alive[condition[0]].add(None)


def _is_alive(alive: _Alive, name: str, condition: Condition | None) -> bool:
    """True if a register may be read where a condition holds."""
    opposite = None if condition is None else (condition[0], not condition[1])
    return any(other is None or other != opposite for other in alive.get(name, ()))


def registers_in(code: str) -> frozenset[str]:
    """Return the variables of registers that stand in the code."""
    return frozenset(_VARIABLE.findall(_QUOTED.sub("", code)))
