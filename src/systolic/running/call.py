"""A call of a jitted function: its arguments, the key of its program, and the call that a worker gets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.compat import jit_shardings
from systolic.compiler import (
    PlacedArray,
    StandIn,
    argument_values,
    giving_away,
    tracing_settings,
)
from systolic.running.host_slice import HostSlice, ShardedCallError, cut_text, is_on_several
from systolic.running.sent import Registration, SentCall
from systolic.running.timed_function import TimedFunction
from systolic.steps import Step

_SHORT_DTYPES = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "s"))
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")
_MAX_ARRAYS = 3  # named in a table
# Floats that a program branches on are scalars and thresholds; integers may be indices and group sizes.
_MAX_FLOATS = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JittedCall:
    """A call of `function(*args, **kwargs)` outside of any trace.

    Attributes:
      dynamic: positional arguments that are not static, then keyword arguments by name, as JAX has them.
      leaves: the flat leaves of `dynamic`.
      key: equal for calls of the same compiled program.
    """

    function: TimedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic: tuple[Any, ...]
    leaves: Sequence[Any]
    key: Hashable

    @staticmethod
    def of(function: TimedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JittedCall | None:
        """Describe a call; None: one inside a trace, or with arguments that JAX refuses."""
        import jax
        from jax.core import Tracer

        static = _static_positions(function, args)
        names = sorted(kwargs.keys() - set(function.static_argnames))
        positions = [number for number in range(len(args)) if number not in static]
        dynamic = (*(args[number] for number in positions), *(kwargs[name] for name in names))
        try:
            leaves, tree = jax.tree.flatten(dynamic)
            if any(isinstance(leaf, Tracer) for leaf in leaves) or _is_traced():
                return None
            fixed = tuple((number, args[number]) for number in sorted(static))
            fixed_names = tuple(sorted((name, kwargs[name]) for name in kwargs.keys() - set(names)))
            settings = tuple(tracing_settings().items())
            key = (id(function), fixed, fixed_names, tuple(names), tree, tuple(map(_kind, leaves)), settings)
            hash(key)
        except (TypeError, ValueError):  # JAX's own message is better
            return None
        return JittedCall(function=function, args=args, kwargs=kwargs, dynamic=dynamic, leaves=leaves, key=key)

    @property
    def options(self) -> tuple[Any, Any]:
        """The shardings of arguments and of results that its `jax.jit` was given; None: none."""
        return jit_shardings(self.function.jitted)

    def step(
        self,
        registrations: Sequence[Registration],
        donated: Sequence[bool],
        is_known: Callable[[Any], bool],
        host_slice: HostSlice | None = None,
    ) -> Step:
        """Return the call for a worker.

        Args:
          registrations: pytree classes that the worker does not know.
          donated: True for each leaf that is donated.
          is_known: returns True if a leaf's contents were computed.
          host_slice: the slice that it runs on; None: it runs on one device.

        Raises:
          ShardedCallError: it is sharded over several devices and there is no slice, or in a way that is not sent.
        """
        import jax

        if host_slice is None and any(map(is_on_several, self.leaves)):
            devices = max(len(leaf.devices()) for leaf in self.leaves if isinstance(leaf, jax.Array))
            raise ShardedCallError(
                f"its arguments are sharded over {devices} devices of this process, which represent no slice: name one "
                "by `systolic run --topology`, or systolic.record(topology=…)"
            )
        flags = iter(donated)
        flags_by_argument = [[next(flags) for _ in jax.tree.leaves(argument)] for argument in self.dynamic]
        argnums = tuple(number for number, leaves in enumerate(flags_by_argument) if leaves and all(leaves))
        static = _static_positions(self.function, self.args)
        sent = SentCall(
            function=self.function,
            positional=tuple(
                None if number not in static else (self.args[number],) for number in range(len(self.args))
            ),
            keywords={
                name: (value,) if name in self.function.static_argnames else None
                for name, value in sorted(self.kwargs.items())
            },
            registrations=tuple(registrations),
        )
        args = jax.tree.map(lambda leaf: _sent_leaf(leaf, is_known(leaf), host_slice), self.dynamic)
        if host_slice is None:
            return Step(fn=giving_away(sent, argnums), args=args)
        mesh = jax.sharding.get_mesh()
        return Step(
            fn=giving_away(sent, argnums, *jax.tree.map(host_slice.sharding, self.options)),
            args=args,
            mesh=None if mesh.empty else host_slice.mesh(mesh),
        )

    @property
    def text(self) -> str:
        """Shapes of the arguments, and static arguments, in short."""
        import jax

        types = [_short(jax.typeof(leaf)) + cut_text(leaf) for leaf in self.leaves]
        words = types if len(types) <= _MAX_ARRAYS else [*types[: _MAX_ARRAYS - 1], f"{len(types) - 2} more"]
        static = [
            _ADDRESS.sub("", repr(self.args[number]))
            for number in self.function.static_argnums
            if -1 < number < len(self.args)
        ]
        static += [f"{name}={self.kwargs[name]!r}" for name in self.function.static_argnames if name in self.kwargs]
        return ", ".join([*words, *(word if len(word) <= 24 else f"{word[:23]}…" for word in static)])


def _static_positions(function: StandIn, args: tuple[Any, ...]) -> set[int]:
    """Return the positions of static positional arguments; a default value has none."""
    numbers = (number + len(args) if number < 0 else number for number in function.static_argnums)
    return {number for number in numbers if 0 <= number < len(args)}


def _kind(leaf: Any) -> tuple[Any, ...]:
    """Return what tells an argument's program from others; a type also holds the mesh that was set meanwhile."""
    import jax

    shape = jax.typeof(leaf)
    sharding = leaf.sharding if is_on_several(leaf) else None
    return shape.shape, shape.dtype, getattr(shape, "weak_type", False), sharding


def _is_traced() -> bool:
    """True inside a trace: computations from constants are then traced, too."""
    import jax
    from jax.core import Tracer

    return isinstance(jax.lax.full((), 0), Tracer)


def _sent_leaf(leaf: Any, is_known: bool, host_slice: HostSlice | None) -> Any:
    """Return the contents of small arrays, on which control flow may depend, and of other arrays the shape."""
    import jax

    if not isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    shape = jax.typeof(leaf)
    sharding = None
    if host_slice is not None and isinstance(leaf, jax.Array) and is_on_several(leaf):
        sharding = host_slice.sharding(leaf.sharding)
    abstract = jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding, weak_type=shape.weak_type)
    is_whole = jax.numpy.issubdtype(shape.dtype, jax.numpy.integer) or shape.dtype == bool
    if not is_known or shape.weak_type or not (is_whole or math.prod(shape.shape) <= _MAX_FLOATS):
        return abstract
    (value,) = argument_values([leaf])
    if value is None:
        return abstract
    return value if sharding is None else PlacedArray(value, sharding)


def _short(shape: Any) -> str:
    name = str(shape.dtype)
    for long, short in _SHORT_DTYPES:
        name = re.sub(rf"^{long}(?=\d)", short, name)
    return f"{name}[{','.join(map(str, shape.shape))}]"
