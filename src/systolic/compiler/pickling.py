"""Pickle functions for a worker, also functions that JAX wraps in objects that do not pickle."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import cloudpickle

from systolic.compiler.caller_globals import SentGlobal, packed_globals
from systolic.compiler.globals_used import resolved
from systolic.compiler.stand_in import StandIn, imported, jitted_again

# Devices of this process, each with the device of a slice that a worker gets in its place.
_SENT_DEVICES: ContextVar[Mapping[Any, Any]] = ContextVar("_SENT_DEVICES", default=MappingProxyType({}))


@contextmanager
def sent_devices(stand_ins: Mapping[Any, Any]) -> Iterator[None]:
    """Replace this process's devices by a slice's in meshes and shardings that are pickled in the block.

    Args:
        stand_ins: the `StandInDevice` of each device.
    """
    token = _SENT_DEVICES.set(stand_ins)
    try:
        yield
    finally:
        _SENT_DEVICES.reset(token)


def dumps(value: Any) -> bytes:
    """`value` pickled: by reference what can be imported, by value what was made in `__main__` or inside a function.

    Raises:
        Exception: whatever the pickling of some part of it raises.
    """
    return _dumped(value, [])


def dumps_with_globals(value: Any) -> tuple[bytes, tuple[SentGlobal, ...]]:
    """Pickle `value`, with the current globals that its functions may read; see `caller_globals`.

    Raises:
        Exception: whatever the pickling of some part of it raises.
    """
    functions: list[Any] = []
    pickled = _dumped(value, functions)
    return pickled, packed_globals(functions, dumps)


def _dumped(value: Any, functions: list[Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, functions).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Adds functions, classes and all else but plain data to a list, in the order in which it meets them."""

    def __init__(self, file: io.BytesIO, functions: list[Any]) -> None:
        super().__init__(file)
        self._functions = functions

    def reducer_override(self, obj: Any) -> Any:
        self._functions.append(obj)
        if isinstance(obj, StandIn):
            if obj.place is not None:
                return imported, obj.place
            return jitted_again, (obj.function, obj.static_argnums, obj.static_argnames)
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(obj, jax.Device) and obj in _SENT_DEVICES.get():
            return _SENT_DEVICES.get()[obj].__reduce__()
        if jax is not None and isinstance(obj, jax.custom_vjp):
            # Its constructor wants the function that pickle hands over only later, as part of its state.
            module, name = getattr(obj, "__module__", "__main__"), getattr(obj, "__qualname__", "")
            if module != "__main__" and resolved(module, name) is obj:  # a worker's `__main__` is another one
                return imported, (module, name)
            return _rebuilt, (type(obj), obj.__dict__)
        return super().reducer_override(obj)


def _rebuilt(kind: type, state: dict[str, Any]) -> Any:
    made = kind(state["fun"])
    made.__dict__.update(state)
    return made
