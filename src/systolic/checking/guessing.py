"""Guesses a reference for a function without one: by its shapes a product, a sum or a copy.

A guess is tried: all results agree with it, or most, or too few for it to mean anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.checking.comparing import ReferenceFunction, compared

# Another function agrees in few results, and one with zeros in it in half of them.
_MIN_AGREEING_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A function that gives the same results, or most of them.

    Attributes:
      text: as Python has it, "lhs @ rhs".
      wrong: which results are others.
    """

    text: str
    wrong: np.ndarray


def guessed(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, terms: int, roundings: int) -> Guess | None:
    """Finds a product, a sum or a copy that all or most results agree with; None: there is none."""
    if len(outputs) != 1 or not 1 <= len(inputs) <= 2 or not outputs[0].size:
        return None
    guesses = []
    for text, fn in _candidates([array.shape for array in inputs], outputs[0].shape):
        expected = ReferenceFunction(fn).evaluated(inputs, 0)
        native = expected.native[0] if expected.native else None
        against = compared(
            outputs[0], expected.values[0], expected.responses[0], terms=terms, roundings=roundings, native=native
        )
        wrong = against.error > np.maximum(against.tolerance, against.coarse)
        guesses.append(Guess(text=text, wrong=wrong))
    best = min(guesses, key=lambda guess: guess.wrong.mean(), default=None)
    return best if best is not None and best.wrong.mean() <= 1 - _MIN_AGREEING_SHARE else None


def _candidates(inputs: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> Iterator[tuple[str, Callable[..., Any]]]:
    import jax.numpy as jnp

    if len(inputs) == 2:
        lhs, rhs = inputs
        if len(lhs) == len(rhs) == 2:
            if lhs[1] == rhs[0] and out == (lhs[0], rhs[1]):
                yield "lhs @ rhs", lambda x, y: _product(x, y)
            if lhs[1] == rhs[1] and out == (lhs[0], rhs[0]):
                yield "lhs @ rhs.T", lambda x, y: _product(x, y.T)
        if lhs == rhs == out:
            yield "x + y", jnp.add
        return
    (shape,) = inputs
    if out == shape:
        yield "x", lambda x: x
    if len(shape) != 2:
        return
    if out == shape[::-1]:
        yield "x.T", jnp.transpose
    for axis in (0, 1):
        if out in ((shape[1 - axis],), tuple(1 if at == axis else size for at, size in enumerate(shape))):
            yield f"x.sum({axis})", lambda x, axis=axis: x.sum(axis).reshape(out)


def _product(lhs: Any, rhs: Any) -> Any:
    import jax.numpy as jnp

    is_integer = jnp.issubdtype(lhs.dtype, jnp.integer) and jnp.issubdtype(rhs.dtype, jnp.integer)
    return jnp.matmul(lhs, rhs, preferred_element_type=jnp.int32 if is_integer else None)
