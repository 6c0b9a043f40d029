"""Send the caller's values of globals of the user's modules to a worker.

A module's function is sent to a worker as a name, and the worker imports the module again, so it would not see globals
that the caller has changed since. Therefore each global that the function may read is sent with a digest. If it differs
from the digest of the worker's own value right after the import, the worker uses the caller's value for one job.

Arrays above 1 MiB, locks, generators and objects of other packages' classes have no digest: the worker uses its own
value, and warns if the types differ.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from systolic.compiler.globals_used import GlobalsUsed, Place, resolved, users_module
from systolic.compiler.stand_in import StandIn

_MAX_VALUE_BYTES = 2**20  # of the arrays and texts in one value
_MAX_DEPTH = 20
_MAX_PARTS = 20_000  # of one value
_ABSENT = object()

# Digests of this process's globals before the first job that may read them, as the import makes them.
_FIRST_DIGESTS: dict[Place, str] = {}

Dump = Callable[[Any], bytes]


class ChangedGlobalWarning(UserWarning):
    """A global that the caller has changed cannot be sent to a worker, which uses its own value."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SentGlobal:
    """A global on its way to a worker."""

    place: Place
    digest: str  # of its value; without one, the type
    value: bytes | None  # pickled; None: it cannot be pickled


def packed_globals(roots: Iterable[Any], dump: Dump) -> tuple[SentGlobal, ...]:
    """Return the globals that functions and other objects with code may read; `dump` pickles a value."""
    used = GlobalsUsed()
    used.add(roots)
    return tuple(_sent(place, value, dump) for place, value in used.values.items())


@contextmanager
def callers_globals(sent: Iterable[SentGlobal]) -> Iterator[None]:
    """Give a worker's modules the caller's globals while a job runs."""
    changed: list[tuple[Any, str, Any]] = []
    try:
        for variables in sent:
            owner = _owner(variables.place)
            if owner is None:
                continue
            before = vars(owner).get(variables.place.name, _ABSENT)
            if variables.place not in _FIRST_DIGESTS:
                _FIRST_DIGESTS[variables.place] = _digest(before)
            if (
                _FIRST_DIGESTS[variables.place] == variables.digest
            ):  # equal when imported: keep what jobs have made of it since
                continue
            try:
                if variables.value is None:
                    raise TypeError("it does not pickle, or is above 1 MiB")
                setattr(owner, variables.place.name, pickle.loads(variables.value))
            except Exception as error:  # noqa: BLE001 -- whatever a class raises when it is unpickled or set
                _warn(variables.place, error)
            else:
                changed.append((owner, variables.place.name, before))
        if changed:
            _forget_traces()
        yield
    finally:
        for owner, name, before in reversed(changed):
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        if changed:
            _forget_traces()


def _warn(place: Place, error: Exception) -> None:
    text = (
        f"{place} differs from its value after a new import of {place.module}, and cannot be sent to the worker "
        f"process that traces the function ({type(error).__name__}: {error}): the worker uses its own. Pass it as an "
        "argument, or bind it with functools.partial"
    )
    warnings.warn(text, ChangedGlobalWarning, stacklevel=1)


def _sent(place: Place, value: Any, dump: Dump) -> SentGlobal:
    digest, pickled = _digest(value), None
    if not digest.startswith(_OPAQUE):
        with suppress(Exception):  # whatever a class raises when it is pickled; the worker says so where it matters
            pickled = dump(value)
    return SentGlobal(place=place, digest=digest, value=pickled)


def _owner(place: Place) -> Any:
    """Return the module or class that has a global; None if this process has none."""
    if place.module not in sys.modules:
        with suppress(Exception):  # the job says what is wrong with it, if it needs it
            importlib.import_module(place.module)
    module = users_module(place.module)
    return resolved(place.module, place.owner) if module is not None and place.owner else module


def _forget_traces() -> None:
    """Make JAX trace functions again that it has traced with other globals."""
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.clear_caches()


# ---- digests ----

_OPAQUE = "of type "


class _OpaqueError(Exception):
    """The value has no digest."""


def _digest(value: Any) -> str:
    """Return a digest that is the same for equal values in any process; the type if there is none."""
    try:
        return _Hashing().digest(value)
    except Exception:  # noqa: BLE001 -- whatever attributes of a user's object raise
        return f"{_OPAQUE}{type(value).__module__}.{type(value).__qualname__}"


class _Hashing:
    def __init__(self) -> None:
        self._left_bytes = _MAX_VALUE_BYTES
        self._parts = 0

    def digest(self, value: Any, depth: int = 0) -> str:
        self._parts += 1
        value = value.jitted if isinstance(value, StandIn) else value  # a worker has the original
        if depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
            raise _OpaqueError
        kind, content = self._content(value, depth + 1)
        return hashlib.blake2b(f"{kind}\0".encode() + content, digest_size=16).hexdigest()

    def _take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise _OpaqueError

    def _all(self, values: Iterable[Any], depth: int) -> bytes:
        return "".join(self.digest(value, depth) for value in values).encode()

    def _content(self, value: Any, depth: int) -> tuple[str, bytes]:
        """Return the kind of a value and bytes that tell it from others of the kind."""
        kind: type = type(value)
        if kind is int:
            return "int", hex(value).encode()
        if kind in (types.NoneType, bool, float, complex, types.EllipsisType, range):
            return kind.__name__, repr(value).encode()
        if kind in (str, bytes):
            data = value.encode("utf-8", "surrogatepass") if kind is str else value
            self._take(len(data))
            return kind.__name__, data
        if kind in (tuple, list):
            return kind.__name__, self._all(value, depth)
        if kind in (set, frozenset):
            return kind.__name__, "".join(sorted(self.digest(member, depth) for member in value)).encode()
        if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
            return kind.__name__, self._all((*value.keys(), *value.values()), depth)
        if isinstance(value, types.ModuleType):
            return "module", value.__name__.encode()
        if isinstance(value, enum.Enum):
            return "enum", self.digest(kind, depth).encode() + value.name.encode()
        if isinstance(value, np.dtype):
            return "dtype", str(value).encode()
        if isinstance(value, np.ndarray | np.generic) or _is_small_jax_array(value):
            return self._array(value)
        if isinstance(value, types.BuiltinFunctionType | np.ufunc):
            return "builtin", f"{getattr(value, '__module__', '')}.{value.__name__}".encode()
        if isinstance(value, type):
            return "class", f"{value.__module__}.{value.__qualname__}".encode()
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, functools.partial):
            return "partial", self._all((value.func, value.args, value.keywords), depth)
        if (inner := getattr(value, "__wrapped__", None)) is not None:
            return f"wrapped {kind.__module__}.{kind.__qualname__}", self.digest(inner, depth).encode()
        return self._record(value, depth)

    def _array(self, value: Any) -> tuple[str, bytes]:
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise _OpaqueError
        self._take(array.nbytes)
        kind = "jax" if not isinstance(value, np.ndarray | np.generic) else type(value).__name__
        return f"{kind} {array.dtype} {array.shape}", array.tobytes()

    def _function(self, value: types.FunctionType, depth: int) -> tuple[str, bytes]:
        name = f"{value.__module__}.{value.__qualname__}"
        if resolved(value.__module__, value.__qualname__) is value:
            return "function", name.encode()  # the worker has the same, unless its file was changed meanwhile
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        of_code = [
            value.__code__.co_code,
            *(constant for constant in value.__code__.co_consts if not hasattr(constant, "co_code")),
        ]
        return f"function {name}", self._all(
            (of_code, value.__defaults__, value.__kwdefaults__, *cells),
            depth,
        )

    def _record(self, value: Any, depth: int) -> tuple[str, bytes]:
        """Return the class and the attributes of a dataclass, or of an object of a user's class."""
        kind = type(value)
        if dataclasses.is_dataclass(value):
            content: Mapping[str, Any] = {
                member.name: getattr(value, member.name) for member in dataclasses.fields(value)
            }
        elif isinstance(value, tuple):
            content = {str(number): member for number, member in enumerate(value)}  # of a named tuple
        elif kind is types.SimpleNamespace or (users_module(kind.__module__) and "__reduce__" not in vars(kind)):
            content = vars(value)
        else:
            raise _OpaqueError
        return "record", self.digest(kind, depth).encode() + self.digest(dict(content), depth).encode()


def _is_small_jax_array(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return (
        jax is not None
        and isinstance(value, jax.Array)
        and not isinstance(value, jax.core.Tracer)
        and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
        and len(value.devices()) == 1
        and value.nbytes <= _MAX_VALUE_BYTES
    )
