"""Words of a tile's scalar memory, and its argument registers, that only one program reads and writes.

Registers are spilled to them. As variables of the translated program they are left out where they decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import digits

from systolic.simulator.sparse_core.listing import SparseInstruction, SparseSection
from systolic.simulator.sparse_core.scalar import place

# By kind of instruction, how the variable of its word begins.
_WORD_KINDS = {"load": "m_", "store": "m_", "read argument": "m_a", "write argument": "m_a"}


def own_word(instruction: SparseInstruction, symbols: Mapping[str, int]) -> str | None:
    """Return a variable for the word at a constant address that is loaded or stored; None for other instructions."""
    kind = instruction.traits.kind
    if kind not in _WORD_KINDS:
        return None
    address = place((instruction.dests if kind in ("store", "write argument") else instruction.operands)[0], symbols)
    return _WORD_KINDS[kind] + address if address.isdecimal() else None


def constant_words(section: SparseSection, symbols: Mapping[str, int]) -> frozenset[str]:
    """Return variables for the words of scalar memory, and arguments, all of whose accesses are at constant addresses.

    There are none where an address is computed, or a copy may write some.
    """
    words: set[str] = set()
    computed: set[str] = set()
    for bundle in section.bundles:
        for instruction in bundle.instructions:
            kind = instruction.traits.kind
            word = own_word(instruction, symbols)
            if word is not None:
                words.add(word)
            elif kind in _WORD_KINDS:
                computed.add(_WORD_KINDS[kind])
            elif kind in ("copy", "copy to any device") and "smem" in instruction.text:
                computed.add("m_")
            elif kind == "task":
                computed.add("m_a")
    return frozenset(word for word in words if word.rstrip(digits) not in computed)
