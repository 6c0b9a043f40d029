"""Rungs by their names."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.lessons.ladder import RUNGS
from systolic.lessons.ladder.rung import Rung


class UnknownRungError(ValueError):
    """No rung of that name."""


def rungs_named(names: Sequence[str]) -> tuple[Rung, ...]:
    """The rungs of these names, each once; all of them for none or `all`.

    Raises:
      UnknownRungError: a name that no rung has.
    """
    for name in names:
        if name not in RUNGS and name != "all":
            raise UnknownRungError(f"rung {name!r} is not known; known are {', '.join(RUNGS)} and all")
    chosen = list(RUNGS) if not names or "all" in names else dict.fromkeys(names)
    return tuple(RUNGS[name] for name in chosen)
