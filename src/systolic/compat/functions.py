"""Traced functions: what JAX stores about them, and a hook for what they do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def low_jaxpr(closed: Any) -> Any:
    """Return a traced function as a parameter of our own primitive: jax 0.12 wraps the types that it lowers."""
    if not getattr(closed, "is_high", False):
        return closed
    from jax._src.interpreters import partial_eval

    lower: Any = partial_eval
    return lower.lower_jaxpr2(closed)


def key_implementation(dtype: Any) -> str:
    """Return the name of the generator whose keys have this dtype; JAX's public API needs a key's value for it."""
    return str(dtype._impl.name)


def donated_arguments(fn: Any) -> tuple[int, ...]:
    """Return the numbers of the donated positional arguments of a function of `jax.jit`; () for other functions.

    The public API returns them only by tracing, and an object of `jax.jit` that was sent to another process cannot be
    traced.
    """
    return tuple(getattr(getattr(fn, "_jit_info", None), "donate_argnums", ()))


def static_arguments(fn: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the numbers and names of the static arguments of a function of `jax.jit`, which public JAX does not say.

    JAX has completed one by the other: an argument that has both is in both.
    """
    info = fn._jit_info
    return tuple(info.static_argnums), tuple(info.static_argnames)


def jit_shardings(fn: Any) -> tuple[Any, Any]:
    """Return the shardings of arguments and of results that were given to `jax.jit`; None if there are none.

    The public API returns them, like the donated arguments, only by tracing.
    """
    info = getattr(fn, "_jit_info", None)
    if info is None:
        return None, None
    shardings = (
        info.in_shardings_treedef.unflatten(info.in_shardings_leaves) if info.user_specified_in_shardings else None,
        info.out_shardings_treedef.unflatten(info.out_shardings_leaves),
    )
    from jax._src.named_sharding import UnspecifiedValue

    return shardings[0], None if isinstance(shardings[1], UnspecifiedValue) else shardings[1]


@contextmanager
def intercepted(handle: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> Iterator[None]:
    """Pass every operation that this thread traces or runs in the block to `handle`, which does it instead.

    Functions that JAX transforms in the block arrive in their transformed form: a gradient as its products. Functions
    inside `custom_jvp`, `custom_vjp` and `shard_map` are followed. Public JAX has no such hook for a block.

    Args:
      handle: is given a primitive, its arguments and its parameters, and returns what binding them would return.
    """
    from jax._src import core

    with core.set_current_trace(_interceptor()(handle, core.trace_ctx.trace)):
        yield


@functools.cache
def _interceptor() -> Any:
    """Return the class of traces that pass everything on to the trace below."""
    from jax._src import core, linear_util

    class Interceptor(core.Trace):
        __slots__ = ("below", "handle")

        def __init__(self, handle: Any, below: Any) -> None:
            super().__init__()
            self.handle, self.below, self.requires_low = handle, below, below.requires_low

        def process_primitive(self, primitive: Any, arguments: Any, params: Any, /) -> Any:
            with core.set_current_trace(self.below):
                return self.handle(primitive, arguments, params)

        def stage_value(self, val: Any) -> Any:
            with core.set_current_trace(self.below):
                return self.below.stage_value(val)

        def process_custom_jvp_call(self, primitive: Any, fn: Any, *rest: Any, **params: Any) -> Any:
            return self.below.process_custom_jvp_call(primitive, self._followed(fn), *rest, **params)

        def process_custom_vjp_call(self, primitive: Any, fn: Any, *rest: Any, **params: Any) -> Any:
            return self.below.process_custom_vjp_call(primitive, self._followed(fn), *rest, **params)

        def process_shard_map(self, primitive: Any, fn: Any, *rest: Any, **params: Any) -> Any:
            return self.below.process_shard_map(primitive, self._followed(fn), *rest, **params)

        def _followed(self, fn: Any) -> Any:
            wrapped = isinstance(fn, linear_util.WrappedFun)
            call = fn.call_wrapped if wrapped else fn

            @functools.wraps(call)
            def follow(*arguments: Any) -> Any:
                with intercepted(self.handle):
                    return call(*arguments)

            return linear_util.wrap_init(follow, debug_info=fn.debug_info) if wrapped else follow

    return Interceptor
