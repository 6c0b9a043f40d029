"""Compute single equations of a traced function in float64, even if the function asks for float32.

A reference that says `.astype(float32)`, or `preferred_element_type=float32`, asks for full precision, not for rounding
to float32: with sums in float32 it would be as inexact as the kernel. Conversions to narrower types still round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from systolic.compat.jaxpr_values import bound
from systolic.compat.jaxprs import functions_inside

_WIDE = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
# The function inside a scatter only combines two elements; its types follow from the operands.
_COMBINES = "scatter"


def widened(value: Any) -> Any:
    """Return a value in float64 or complex128 if it is of float32 or complex64."""
    import jax.numpy as jnp

    wide = _WIDE.get(np.dtype(dtype)) if isinstance(dtype := jnp.result_type(value), np.dtype) else None
    return value if wide is None else jnp.asarray(value, wide)


def bound_widely(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Run an equation on widened operands, and widen its results.

    Operands keep their types if the equation depends on them: a bitcast, or an equation with a function inside.
    """
    import jax.numpy as jnp

    name = equation.primitive.name
    fixed = name == "bitcast_convert_type" or (functions_inside(equation) and not name.startswith(_COMBINES))
    if not fixed:
        return [widened(result) for result in bound(equation, [*map(widened, operands)], _wide_params(equation))]
    typed = [
        jnp.asarray(operand, atom.aval.dtype) if _is_float(operand) else operand
        for operand, atom in zip(operands, equation.invars, strict=True)
    ]
    return [widened(result) for result in bound(equation, typed)]


def _wide_params(equation: Any) -> dict[str, Any]:
    return {key: _WIDE.get(value, value) if isinstance(value, np.dtype) else value for key, value in
            equation.params.items()}  # fmt: skip


def _is_float(value: Any) -> bool:
    import jax.numpy as jnp

    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)
