"""Arguments that a function of `jax.jit` gives away, whose memory its results then take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from systolic.compat import donated_arguments


@dataclass(frozen=True, slots=True)
class DonatingFunction:
    """A function and the numbers of the arguments that it gives away, which it forgets on its way to a worker."""

    fn: Callable[..., Any]
    donated: tuple[int, ...]

    @property
    def __name__(self) -> str:  # type: ignore[override]
        """As a function's, for messages."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))


def with_donation(fn: Any) -> Any:
    """Keeps beside a function what it gives away, if it gives anything away."""
    donated = donated_arguments(fn)
    return DonatingFunction(fn, donated) if donated else fn


def without_donation(fn: Any) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Splits what `with_donation` has made: the function, and the numbers of the arguments that it gives away."""
    return (fn.fn, fn.donated) if isinstance(fn, DonatingFunction) else (fn, donated_arguments(fn))
