"""The order in which a program starts its SparseCores: that of the schedule, with each loop's body in its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LAUNCH = "call-start"
_SPARSE_THREAD = 'async_execution_thread="sparsecore"'
_ENTERING = frozenset({"while", "conditional", "call"})
_ENTERED = re.compile(
    r"\b(?:body|to_apply|true_computation|false_computation)=%([\w.\-]+)|\bbranch_computations=\{([^}]*)\}", re.ASCII
)


@dataclass(slots=True)
class LaunchOrder:
    """The launches of a module's computations; `enter` and `add` take its text in order."""

    # Names of launches, and of computations that are entered, by computation.
    _steps: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)
    _computation: str = ""  # the latest, and in the end the entry, which is the last one in the text

    def enter(self, computation: str) -> None:
        """Begin a computation."""
        self._computation = computation
        self._steps[computation] = []

    def add(self, name: str, opcode: str, rest: str) -> None:
        """Add an instruction; `rest` is the text from its operands on."""
        steps = self._steps.setdefault(self._computation, [])
        if opcode == _LAUNCH and _SPARSE_THREAD in rest:
            steps.append((name, True))
        elif opcode in _ENTERING:
            for one, several in _ENTERED.findall(rest):
                steps += [(entered.strip(" %"), False) for entered in (one or several).split(",")]

    def launches(self) -> tuple[str, ...]:
        """Return the names of all launches. No computation is entered from two places, as XLA leaves none such."""
        result: list[str] = []
        entered = {self._computation}
        ahead = self._steps.get(self._computation, [])[::-1]
        while ahead:
            name, is_launch = ahead.pop()
            if is_launch:
                result.append(name)
            elif name not in entered:
                entered.add(name)
                ahead += self._steps.get(name, [])[::-1]
        return tuple(result)
