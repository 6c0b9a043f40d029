"""Options of a function of `jax.jit`: donated arguments, and shardings of arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from systolic.compat import donated_arguments, jit_shardings
from systolic.compiler.named import function_name


@dataclass(frozen=True, slots=True)
class JitOptions:
    """Options of a `jax.jit`, which the function forgets on its way to a worker."""

    donated: tuple[int, ...] = ()  # numbers of the arguments that it gives away, whose memory its results then take
    in_shardings: Any = None  # of the arguments, as `jax.jit` takes them; None: not given
    out_shardings: Any = None  # of the results
    mesh: Any = None  # set while the function is traced, as by `jax.set_mesh`; None: no mesh
    # Whether arguments and results on one device lie in memory in the order of their dimensions, as `jax.device_put`
    # stores them with a `Layout`; else in the order that the compiler prefers.
    is_row_major: bool = False

    @property
    def shardings(self) -> dict[str, Any]:
        """The given shardings, as keyword arguments of `jax.jit`."""
        named = {"in_shardings": self.in_shardings, "out_shardings": self.out_shardings}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class FunctionWithOptions:
    """A function and its options, which a worker takes in place of the function."""

    fn: Callable[..., Any]
    options: JitOptions
    name: str  # a `jax.jit` loses this on its way, too

    @property
    def __name__(self) -> str:  # type: ignore[override]
        """The function's name, for messages."""
        return self.name


def with_jit_options(fn: Any, mesh: Any = None) -> Any:
    """Attach the options of its `jax.jit`, if any, to a function, and the mesh to set while it is traced."""
    inner, options = without_jit_options(fn)
    options = options if mesh is None else replace(options, mesh=mesh)
    return fn if options == JitOptions() else FunctionWithOptions(inner, options, function_name(fn))


def row_major(fn: Any) -> Any:
    """Return the function with arguments and results whose dimensions are in order in memory."""
    inner, options = without_jit_options(fn)
    return FunctionWithOptions(inner, replace(options, is_row_major=True), function_name(fn))


def without_jit_options(fn: Any) -> tuple[Callable[..., Any], JitOptions]:
    """Split a function of `with_jit_options` into function and options; others have the options of their `jax.jit`."""
    if isinstance(fn, FunctionWithOptions):
        return fn.fn, fn.options
    in_shardings, out_shardings = jit_shardings(fn)
    return fn, JitOptions(donated_arguments(fn), in_shardings, out_shardings)


def with_options_of(fn: Any, made: Callable[..., Any]) -> Any:
    """Give a function that was made of another the options of that one."""
    _, options = without_jit_options(fn)
    return made if options == JitOptions() else FunctionWithOptions(made, options, function_name(fn))


def giving_away(
    fn: Callable[..., Any], donated: tuple[int, ...], in_shardings: Any = None, out_shardings: Any = None
) -> Any:
    """Return the function with these arguments donated, as by `jax.jit(fn, donate_argnums=donated)`, and shardings."""
    options = JitOptions(donated, in_shardings, out_shardings)
    return fn if options == JitOptions() else FunctionWithOptions(fn, options, function_name(fn))
