"""A kernel that `check_kernels.py` checks: sound, or with one fault that a rule has to name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call of a kernel.

    Attributes:
      name: in the table.
      rules: any of these may name the fault; none: the kernel is sound.
      reference: a function of the same arguments; None: it is checked without one.
      at_least: the grade that has to be found.
      mesh: axes of a mesh with their sizes; none: it runs on one device.
      chip: the chip that supports it; "": any.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    reference: Callable[..., Any] | None = None
    rules: frozenset[str] = frozenset()
    at_least: str = "error"
    mesh: tuple[tuple[str, int], ...] = ()
    chip: str = ""


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """A shape with a dtype."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def sound(
    fn: Callable[..., Any],
    *args: Any,
    reference: Callable[..., Any] | None,
    name: str = "",
    mesh: tuple[tuple[str, int], ...] = (),
    chip: str = "",
    **options: Any,
) -> Case:
    """Return the case of a kernel that is right."""
    bound = functools.partial(fn, **options)
    words = f" {', '.join(f'{key}={value}' for key, value in options.items())}" if options else ""
    full_name = f"{fn.__name__}{words}{' ' * bool(name)}{name}"
    return Case(name=full_name, fn=bound, args=args, reference=reference, mesh=mesh, chip=chip)


def faulty(
    fn: Callable[..., Any],
    fault: str,
    *args: Any,
    rules: str,
    reference: Callable[..., Any] | None,
    at_least: str = "error",
    mesh: tuple[tuple[str, int], ...] = (),
    chip: str = "",
    **options: Any,
) -> Case:
    """Return the case of a sound kernel with one fault.

    Args:
      fault: as the kernel takes it.
      rules: any of these may name it, with blanks.
    """
    return Case(
        name=f"{fn.__name__}: {fault}{'' if reference else ', no reference'}",
        fn=functools.partial(fn, fault=fault, **options),
        args=args,
        reference=reference,
        rules=frozenset(rules.split()),
        at_least=at_least,
        mesh=mesh,
        chip=chip,
    )
