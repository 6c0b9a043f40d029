"""Functions of `jax.jit` that another object replaces in this process; a worker gets the original."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from systolic.compiler.globals_used import resolved


class StandIn:
    """Replaces a function of `jax.jit`.

    Attributes:
        jitted: the replaced function.
        function: the function that `jax.jit` was given.
        static_argnums, static_argnames: the arguments that are static.
    """

    jitted: Any
    function: Callable[..., Any]
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str] | None:
        """Module and name by which a worker imports the original; None: it has to be sent."""
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
            return None
        return (module, name) if resolved(module, name) is self else None


def imported(module: str, name: str) -> Any:
    """Return the original in a worker, which imports its module.

    Raises:
        ImportError: a worker cannot import the module, or it has no such name there.
    """
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (AttributeError, ImportError) as error:
        raise ImportError(
            f"a worker process cannot import {name} from {module} ({error}): install the module, or put its folder "
            "on PYTHONPATH"
        ) from error


def jitted_again(function: Callable[..., Any], static_argnums: Sequence[int], static_argnames: Sequence[str]) -> Any:
    """Return the original, made again in a worker.

    It is called inside the worker's own `jax.jit`: only what is static matters there.
    """
    import jax

    return jax.jit(function, static_argnums=tuple(static_argnums), static_argnames=tuple(static_argnames))
