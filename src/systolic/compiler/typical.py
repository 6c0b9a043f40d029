"""Values that only data decide, such as how many tokens a router sends to each expert, where no data is given.

A kernel with scalar prefetch runs as long as such values say. Where arguments are shapes alone they are unknown: then
`typical` says with which a program is simulated. In the program itself it does nothing.
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
    """A value that cannot be taken for the contents of an array."""


def typical(x: Array, value: ArrayLike) -> Array:
    """x itself; what is simulated takes `value` in its place where the contents of x are not known.

    Args:
      x: any shape, whole numbers: what it decides has no gradient.
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
    # A parameter has to be hashable, and travels where an operand that nothing uses would be dropped.
    return _primitive().bind(x, value=tuple(example.ravel().tolist()))


def typical_value(equation: Any) -> np.ndarray:
    """The value that an equation of that primitive names."""
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

    def each(args: Any, dims: Any, *, value: tuple[int, ...]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        copies = value * x.shape[dim]
        return made.bind(jnp.moveaxis(x, dim, 0), value=copies), 0

    batching.primitive_batchers[made] = each
    return made
