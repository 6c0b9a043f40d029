"""The Python code of a SparseCore program's bundles: what they do, and the new values of registers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.simulator.translating.scalar import choice

JUMP = "jump = "
_TIME = re.compile(r"\bt\b", re.ASCII)

Condition = tuple[str, bool]  # a predicate register's variable, and the value that it has to have


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done, if its condition holds."""

    code: Sequence[str]
    condition: Condition | None

    def lines(self) -> list[str]:
        if self.condition is None:
            return [*self.code]
        name, wanted = self.condition
        return [f"if {name if wanted else f'not {name}'}:", *(f"    {line}" for line in self.code)]


@dataclass(frozen=True, slots=True)
class NewValue:
    """The new value of a register, if its condition holds; else it is another one.

    Attributes:
      otherwise: the register's variable, or the value under the opposite condition.
    """

    code: str
    condition: Condition | None
    otherwise: str

    def expression(self) -> str:
        if self.condition is None:
            return self.code
        name, wanted = self.condition
        return choice(name, *((f"({self.code})", self.otherwise) if wanted else (self.otherwise, f"({self.code})")))


@dataclass(slots=True, kw_only=True)
class BundleCode:
    """The code of one bundle.

    Attributes:
      events: what takes its own time, or is seen by other units.
      effects: all else that is done but new values of registers.
      values: the new values of registers, by the register's variable; their code reads the old ones.
      cycles: how long the bundle takes, beside its events.
      ends: the program ends with it.
    """

    events: list[Step]
    effects: list[Step]
    values: dict[str, NewValue]
    cycles: int
    ends: bool

    @property
    def is_empty(self) -> bool:
        """True if it only takes time."""
        return not (self.events or self.effects or self.values)

    @property
    def is_plain(self) -> bool:
        """True if it does nothing that depends on the time, or that others see."""
        seen = any(not line.startswith(JUMP) for step in self.effects for line in step.code)
        timed = any(_TIME.search(value.code) for value in self.values.values())
        return not (self.events or seen or self.ends or timed)

    def lines(self) -> list[str]:
        values = [value.expression() for value in self.values.values()]
        assigned = [f"{', '.join(self.values)} = {', '.join(values)}"] if values else []
        return [line for step in (*self.events, *self.effects) for line in step.lines()] + assigned
