"""Values that are computed when they are first needed, or are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Missing:
    """A value that cannot be computed, and the reason."""

    why: str
    argument: int | None = None  # whose value is missing, by number among the flat arguments; None: of none


class Deferred:
    """A value that is computed once, when it is first needed.

    Args:
        compute: may ask for the values in `needs`, and for no others.
        local: True if the value may differ between devices; a value that needs a local one is local, too.
    """

    __slots__ = ("_compute", "_needs", "_value", "local")

    def __init__(self, compute: Callable[[], Any], needs: Sequence[Deferred] = (), *, local: bool = False) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._needs = needs
        self._value: Any = None
        self.local = local or any(need.local for need in needs)

    @classmethod
    def known(cls, value: Any, *, local: bool = False) -> Deferred:
        """Wrap a value that is already known."""
        made = cls(lambda: None, local=local)
        made._value, made._compute = value, None
        return made

    @property
    def is_missing(self) -> bool:
        """True if something that it needs is missing, as far as that is known without computing anything."""
        pending: list[Deferred] = [self]
        seen = set(pending)
        while pending:
            value = pending.pop()
            if value._compute is None and isinstance(value._value, Missing):
                return True
            if isinstance(value, _KnownOr):
                continue
            new = [need for need in value._needs if need not in seen]
            seen.update(new)
            pending += new
        return False

    def get(self) -> Any:
        """Return the value, or a `Missing`."""
        # What is needed comes first, without recursion: a chain of operations may be long.
        pending = [self]
        while pending:
            top = pending[-1]
            if top._compute is None:
                pending.pop()
                continue
            needed = [need for need in top._needs if need._compute is not None]
            if needed:
                pending += needed
                continue
            top._value, top._compute, top._needs = top._compute(), None, ()
            pending.pop()
        return self._value


class _KnownOr(Deferred):
    """A value with another one in its place if it is missing, which therefore never is."""

    __slots__ = ()


def applied(function: Callable[[Any], Any], value: Deferred, *, local: bool = False) -> Deferred:
    """Apply a function to a value; missing where the value is."""

    def compute() -> Any:
        contents = value.get()
        return contents if isinstance(contents, Missing) else function(contents)

    return Deferred(compute, [value], local=local)


def known_or(value: Deferred, other: Any) -> Deferred:
    """Return a value, or another one in its place if it is missing."""

    def compute() -> Any:
        contents = value.get()
        return other if isinstance(contents, Missing) else contents

    return _KnownOr(compute, [value])
