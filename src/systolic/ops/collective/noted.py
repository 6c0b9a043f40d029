"""The choices between kernels across chips and XLA, noted in a traced program, where `plan_across_chips` finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from systolic.compat.jaxprs import equations
from systolic.ops.collective.choice import RingChoice

_noted = Primitive("choice_across_chips")
_noted.def_abstract_eval(lambda array, *, choice: array)
_noted.def_impl(lambda array, *, choice: array)
ad.primitive_jvps[_noted] = lambda arrays, tangents, *, choice: (noted(arrays[0], choice), tangents[0])
batching.defvectorized(_noted)
mlir.register_lowering(_noted, lambda _context, array, *, choice: [array])


def noted(array: Array, choice: RingChoice) -> Array:
    """Return the array, and note in the traced program how its product was chosen."""
    return _noted.bind(array, choice=choice)


def choices_of(fn: Callable[..., Any], *args: Any) -> tuple[RingChoice, ...]:
    """Return the choices in a function of arrays, or shapes, on a mesh with explicit axes."""
    jaxpr = jax.make_jaxpr(fn)(*args)
    return tuple(equation.params["choice"] for equation in equations(jaxpr.jaxpr) if equation.primitive is _noted)
