"""Typical values of data that decides how long a program runs, such as the number of tokens for each expert.

The time of a kernel with scalar prefetch depends on such values. If arguments are only shapes, the values are unknown,
and the program is simulated with those that `typical` names. When the program runs, `typical` does nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from systolic.support.call_errors import WrongCallError

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

PRIMITIVE = "systolic_typical"


class TypicalError(WrongCallError, ValueError):
    """The value cannot be the contents of the array."""


def typical(x: Array, value: ArrayLike) -> Array:
    """Return x; a simulation uses `value` in its place if the contents of x are not known.

    Args:
      x: integers of any shape. They have no gradient.
      value: known when the function is traced; of the same shape.

    Raises:
      TypicalError: the shapes differ, or x is not of whole numbers.
    """
    import jax.numpy as jnp

    example = np.asarray(value)
    if example.shape != x.shape or not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypicalError(
            f"typical takes whole numbers and a value of the same shape, not {x.dtype}{x.shape} and {example.shape}"
        )
    # A parameter, which must be hashable: JAX would drop an operand that nothing uses.
    return _primitive().bind(x, value=tuple(example.ravel().tolist()))


def typical_value(equation: Any) -> np.ndarray:
    """Return the value that an equation of this primitive names."""
    aval = equation.outvars[0].aval
    return np.asarray(equation.params["value"], aval.dtype).reshape(aval.shape)


@functools.cache
def _primitive() -> Any:
    import jax.numpy as jnp
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    made: Any = Primitive(PRIMITIVE)
    made.def_impl(lambda x, *, value: x)
    made.def_abstract_eval(lambda x, *, value: x)
    mlir.register_lowering(made, lambda _, x, *, value: [x])

    def batched(args: Any, dims: Any, *, value: tuple[int, ...]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        copies = value * x.shape[dim]
        return made.bind(jnp.moveaxis(x, dim, 0), value=copies), 0

    batching.primitive_batchers[made] = batched
    return made
