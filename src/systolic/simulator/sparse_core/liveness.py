"""Leave out the values that decide nothing: most scalar code of a SparseCore computes addresses.

Much of it stands under conditions, as the last round of a loop sends nothing on. So a register may be alive under one
condition only: then what it gets under the opposite one is left out as well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from systolic.simulator.sparse_core.blocks import SparseBlock
from systolic.simulator.sparse_core.bundle import BundleCode, Condition, NewValue

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_VARIABLE = re.compile(r"\b[spwx]\d+\b", re.ASCII)

_Alive = defaultdict[str, set[Condition | None]]  # the conditions under which a register is read; None: always


def leave_out_dead_values(blocks: Sequence[SparseBlock], code: Sequence[Sequence[BundleCode]]) -> None:
    """Remove the new values of registers that no event, effect or branch depends on.

    Args:
      code: of each block, its bundles'.
    """
    reads = [[_Reads.of(bundle) for bundle in bundles] for bundles in code]
    alive_at = [_Alive(set) for _ in blocks]  # where a block begins

    def alive_after(block: SparseBlock) -> _Alive:
        alive = _Alive(set)
        for target in (block.taken, block.following):
            if target is not None:
                for name, conditions in alive_at[target].items():
                    alive[name] |= conditions
        return alive

    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(blocks))):
            alive = alive_after(blocks[index])
            for bundle in reversed(reads[index]):
                bundle.go_back(alive)
            changed = changed or alive != alive_at[index]
            alive_at[index] = alive
    for index, block in enumerate(blocks):
        alive = alive_after(block)
        for bundle, read in zip(reversed(code[index]), reversed(reads[index]), strict=True):
            bundle.values = {name: bundle.values[name] for name in read.go_back(alive)}


@dataclass(frozen=True, slots=True)
class _Reads:
    """The registers that a bundle reads for what it does, and for each of its new values."""

    done: Mapping[str, set[Condition | None]]
    values: Mapping[str, tuple[NewValue, frozenset[str]]]

    @staticmethod
    def of(bundle: BundleCode) -> _Reads:
        done = _Alive(set)
        for step in (*bundle.events, *bundle.effects):
            _read(done, _registers("\n".join(step.code)), step.condition)
        values = {}
        for name, value in bundle.values.items():
            if value.otherwise != name:  # two values, one of which it gets
                value = NewValue(value.expression(), None, name)
            values[name] = value, _registers(value.code)
        return _Reads(done, values)

    def go_back(self, alive: _Alive) -> list[str]:
        """Change the registers alive after the bundle into those before it; return those whose new values count."""
        for predicate in self.values:
            if predicate[0] == "p":  # conditions were those of its new value
                for conditions in alive.values():
                    if conditions & {(predicate, True), (predicate, False)}:
                        conditions -= {(predicate, True), (predicate, False)}
                        conditions.add(None)
        counting = [name for name, (value, _) in self.values.items() if _is_alive(alive, name, value.condition)]
        after = {name: alive.pop(name) for name in counting}
        for name, conditions in after.items():
            value, read = self.values[name]
            _read(alive, read, value.condition)
            if value.condition is not None:
                predicate, wanted = value.condition
                opposite = (predicate, not wanted)
                others = {opposite if condition is None else condition for condition in conditions - {value.condition}}
                alive[name] |= others
        for name, conditions in self.done.items():
            alive[name] |= conditions
        return counting


def _read(alive: _Alive, names: frozenset[str], condition: Condition | None) -> None:
    for name in names:
        alive[name].add(condition)
    if condition is not None:
        alive[condition[0]].add(None)


def _is_alive(alive: _Alive, name: str, condition: Condition | None) -> bool:
    """True if a register may be read where a condition holds."""
    opposite = None if condition is None else (condition[0], not condition[1])
    return any(other is None or other != opposite for other in alive.get(name, ()))


def _registers(code: str) -> frozenset[str]:
    return frozenset(_VARIABLE.findall(_QUOTED.sub("", code)))
