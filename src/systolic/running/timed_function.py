"""Replace a function of `jax.jit` by one whose calls are recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from systolic.compat import static_arguments
from systolic.compiler import StandIn

Handler = Callable[["TimedFunction", tuple[Any, ...], Mapping[str, Any]], Any]


class TimedFunction(StandIn):
    """Replaces a function of `jax.jit`: a call goes to `handle`, everything else to the original.

    Args:
      jitted: the original.
      handle: called with the function and the call's arguments; returns the call's result.
    """

    def __init__(self, jitted: Any, handle: Handler) -> None:
        functools.update_wrapper(self, jitted)
        self.jitted = jitted
        self.function = self.__wrapped__ = jitted.__wrapped__
        self.static_argnums, self.static_argnames = static_arguments(jitted)
        self._handle = handle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle(self, args, kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    # `jax.stages.Wrapped` is a protocol that needs these names.

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace as the original does."""
        return self.jitted.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower as the original does."""
        return self.jitted.lower(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "jitted":  # before __init__, when it is copied
            raise AttributeError(name)
        return getattr(self.jitted, name)

    def __repr__(self) -> str:
        return repr(self.jitted)
