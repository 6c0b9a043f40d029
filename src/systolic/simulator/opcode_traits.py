"""The traits of an instruction, and a table of them by opcode. The tables of both kinds of cores: `opcodes.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

# The module that makes code or work of an instruction: `translating/scalar.py`, `bundle.py` and `events.py`,
# `hardware/mxu.py`, or `reading/blocks.py`. For SparseCores `sparse_core/translate.py` does all of it.
Translator = Literal["nobody", "scalar", "bundle", "events", "mxu", "blocks"]
# issue: over with its bundle. event: time may pass, or others see it. matrix: the MXUs work on after it.
Latency = Literal["issue", "event", "matrix"]
# The place where its effect stays.
Target = Literal["nothing", "register", "memory", "flag", "queue"]

Kind = Literal[
    "arithmetic",
    "move",  # also one that keeps the old value where its predicate does not hold
    "select",
    "address",  # so far into an allocation
    "pointer",  # gives an address a type; reads what its own bundle writes
    "runtime word",
    "parameter",
    "operand",  # what the caller hands over in a register
    "load",
    "store",
    "vector load",
    "vector move",
    "push",  # from the vector side to the scalar side
    "pop",
    "division",
    "division pop",
    "read flag",
    "add to flag",
    "set flag",
    "phi",  # names what is in its register anyway, on whichever path the program came
    "branch",
    "branch out",  # of the program
    "call",
    "copy",
    "copy to any device",
    "fetch and add",  # of a word in another core's scalar memory
    "wait for copy",
    "wait",  # for a count of a flag
    "wait for value",
    "signal",  # to another core or device
    "signal in the core",  # of a SparseCore, from its sequencer to a tile or back
    "set remote flag",  # of a SparseCore, to 0, or of a BarnaCore
    "start a BarnaCore",
    "send",
    "receive",
    "matmul",
    "weight push",
    "result pop",
    "lane move",  # of a register by a cross-lane unit
    "stream",
    "task",
    "barrier",
    "read argument",
    "write argument",
    "delay",
    "halt",
    "refused",  # where a program reaches it: it is there to be watched by its runtime
    "ignored",  # without effect on control flow, copies or time
    "unsupported wait",
    "unsupported",  # would have one: an error where it matters
    "unknown",  # in no table
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opcode:
    """One instruction, or all instructions with a common beginning of their names."""

    name: str  # as in listings; a * at its end matches any further characters
    kind: Kind  # its class of effects
    translator: Translator = "nobody"  # the module that makes code or work of it
    # The operands that decide what it does and when; of a copy, its size. Flags come in addition.
    reads: slice = field(default_factory=partial(slice, None))
    writes: Target = "nothing"  # where its effect goes
    # What its register becomes, as Python: operands are `{a}` and `{b}`, as signed numbers in excess-2³¹ form `{sa}`
    # and `{sb}`, and `{m}` is the mask of a word.
    expression: str = ""
    has_side_effects: bool = False  # it matters even if its register is never read
    flags: slice = field(default_factory=partial(slice, 0))  # which of its operands are sync flags
    names_result: bool = False  # its result has the instruction's name, `%12 = spop`, and not a register's
    is_remote: bool = False  # it may act on another device
    # A field and not a property: reading a program asks for it several times for each of a million instructions.
    latency: Latency = field(init=False)

    def __post_init__(self) -> None:
        latency = "event" if self.translator == "events" else "matrix" if self.translator == "mxu" else "issue"
        object.__setattr__(self, "latency", latency)

    @property
    def is_wait(self) -> bool:
        """True if it holds the program up until a flag changes."""
        return self.kind in ("wait for copy", "wait", "wait for value", "unsupported wait")

    @property
    def is_vector(self) -> bool:
        """True if the vector side issues it."""
        return self.name.startswith("v")


_MAX_ENTRIES = 1 << 14  # of a table: a listing that is not a program may hold any number of names
_UNKNOWN = Opcode(name="", kind="unknown", translator="scalar", writes="register")


class OpcodeTable(dict[str, Opcode]):
    """Entries by opcode; an opcode without an entry is of kind "unknown".

    The longest name that an opcode begins with counts. Found entries are kept: listings repeat a few dozen opcodes.
    """

    def __init__(self, entries: Iterable[Opcode]) -> None:
        super().__init__()
        self._families: list[Opcode] = []
        for entry in entries:
            if entry.name.endswith("*"):
                self._families.append(entry)
            else:
                self[entry.name] = entry
        self._families.sort(key=lambda entry: -len(entry.name))
        self.entries = (*self.values(), *self._families)

    def __missing__(self, opcode: str) -> Opcode:
        families = (entry for entry in self._families if opcode.startswith(entry.name[:-1]))
        entry = next(families, _UNKNOWN)
        if len(self) < _MAX_ENTRIES:
            self[opcode] = entry
        return entry
