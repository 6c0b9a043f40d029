"""The public names of JAX that are replaced while a program runs as if on a TPU."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from systolic.running.replacing import Replacement
from systolic.running.sent import Registration
from systolic.running.timed_function import Handler, TimedFunction

# Some of their public functions are made with `jax.jit`. Operators of arrays call functions without a public name.
_MODULES = ("jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.nn", "jax.lax", "jax.scipy.linalg")
_REGISTER = (
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
)


def jit_patches(handle: Handler) -> Iterator[Replacement]:
    """Yield replacements of `jax.jit`, and of jitted functions in JAX's public modules."""
    import jax

    yield Replacement(jax, "jit", _noticing(jax.jit, handle))
    for name in _MODULES:
        module = importlib.import_module(name)
        for public, value in list(vars(module).items()):
            if not public.startswith("_") and isinstance(value, jax.stages.Wrapped) and not isinstance(value, type):
                yield Replacement(module, public, TimedFunction(value, handle))


def _noticing(jit: Callable[..., Any], handle: Handler) -> Callable[..., Any]:
    @functools.wraps(jit)
    def noticing_jit(*function: Any, **options: Any) -> Any:
        if not function:  # a decorator with options only
            return functools.partial(noticing_jit, **options)
        return TimedFunction(jit(*function, **options), handle)

    return noticing_jit


def registration_patches(registrations: list[Registration]) -> Iterator[Replacement]:
    """Yield replacements of functions that register pytree classes; classes that no worker can import are recorded."""
    import jax

    for name in _REGISTER:
        yield Replacement(jax.tree_util, name, _remembering(name, getattr(jax.tree_util, name), registrations))


def _remembering(name: str, register: Callable[..., Any], registrations: list[Registration]) -> Callable[..., Any]:
    @functools.wraps(register)
    def remembering(*args: Any, **kwargs: Any) -> Any:
        result = register(*args, **kwargs)
        if args and (args[0].__module__ == "__main__" or "<locals>" in args[0].__qualname__):
            registrations.append(Registration(function=name, args=args, kwargs=kwargs))
        return result

    return remembering
