"""Leave out the values that decide nothing: most scalar code of a SparseCore computes addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from systolic.simulator.sparse_core.blocks import SparseBlock
from systolic.simulator.sparse_core.bundle import BundleCode

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_VARIABLE = re.compile(r"\b[spwx]\d+\b", re.ASCII)


def leave_out_dead_values(blocks: Sequence[SparseBlock], code: Sequence[Sequence[BundleCode]]) -> None:
    """Remove the new values of registers that no event, effect or branch depends on.

    Args:
      code: of each block, its bundles'.
    """
    reads = [[_Reads.of(bundle) for bundle in bundles] for bundles in code]
    alive_at: list[frozenset[str]] = [frozenset()] * len(blocks)  # where a block begins

    def alive_after(block: SparseBlock) -> set[str]:
        return {name for target in (block.taken, block.following) if target is not None for name in alive_at[target]}

    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(blocks))):
            alive = alive_after(blocks[index])
            for bundle in reversed(reads[index]):
                bundle.go_back(alive)
            changed = changed or alive != alive_at[index]
            alive_at[index] = frozenset(alive)
    for index, block in enumerate(blocks):
        alive = alive_after(block)
        for bundle, read in zip(reversed(code[index]), reversed(reads[index]), strict=True):
            bundle.values = {name: value for name, value in bundle.values.items() if name in alive}
            read.go_back(alive)


@dataclass(frozen=True, slots=True)
class _Reads:
    """The registers that a bundle reads for what it does, and for each of its new values."""

    done: frozenset[str]
    values: Mapping[str, frozenset[str]]

    @staticmethod
    def of(bundle: BundleCode) -> _Reads:
        values = {name: _registers([value]) for name, value in bundle.values.items()}
        return _Reads(_registers([*bundle.events, *bundle.effects]), values)

    def go_back(self, alive: set[str]) -> None:
        """Change the registers that are alive after the bundle into those before it."""
        needed = [reads for name, reads in self.values.items() if name in alive]
        alive.difference_update(self.values)
        alive.update(self.done, *needed)


def _registers(code: Sequence[str]) -> frozenset[str]:
    return frozenset(_VARIABLE.findall(_QUOTED.sub("", "\n".join(code))))
