"""Evaluates a function with a random relative change at everything that it rounds.

What a reference responds to a change of its inputs alone says nothing of a difference of two equal terms: its result is
zero, whatever the inputs are, and yet each term is rounded by itself. So every product, sum and elementary function is
changed, and the operands of products and sums once more at each use, as the terms of a sum are rounded on the way.
Selections, comparisons, maxima and moves are exact, and stay.

A sum that is used several times is changed anew at each use, as if it were added up again in another order: so may a
kernel do that has to have it in two places, and then what the uses have in common does not cancel.

A softmax is exp(x − max) / sum, and exp(x − log_sum) as well, as gradients of flash attention have it. Rounding of the
larger operand of that difference cancels in the first and stays in the second: so what divides such an exponential gets
the change of both.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

_SUMS = frozenset(("dot_general", "reduce_sum", "cumsum", "conv_general_dilated", "add", "sub", "add_any"))
_ROUNDED = _SUMS | frozenset(
    (
        *("mul", "div", "rem", "square", "sqrt", "rsqrt", "cbrt", "pow", "integer_pow", "exp", "exp2", "expm1", "log"),
        *("log1p", "tanh", "logistic", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh"),
        *("acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma", "reduce_prod", "cumprod", "cumlogsumexp"),
    )
)
_ADDED_UP = frozenset(("dot_general", "reduce_sum"))
_INSIDE = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # of a call that is made once, as `jit` and `custom_jvp` make
_CALLS = frozenset(
    ("pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "remat")
) | frozenset(("checkpoint", "remat2", "custom_lin"))


def perturbed(closed: Any, arguments: Sequence[Any], seed: Any, change: Any) -> list[Any]:
    """Evaluates a closed jaxpr with a change of relative deviation `change` at every argument and every rounding.

    Args:
      closed: of the function, for these arguments.
      arguments: flat.
      seed: of the changes.
      change: 0.0: none.
    """
    evaluation = _Evaluation(seed=seed, change=change)
    return evaluation.run(closed.jaxpr, closed.consts, [evaluation.changed(each) for each in arguments])


class _Evaluation:
    def __init__(self, seed: Any, change: Any) -> None:
        self._seed = seed
        self._change = change
        self._changes = 0

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        from jax.extend.core import Literal

        known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

        uses = Counter(
            atom
            for atoms in (*(equation.invars for equation in jaxpr.eqns), jaxpr.outvars)
            for atom in atoms
            if not isinstance(atom, Literal)
        )
        again: dict[Any, Any] = {}  # adds up a sum anew

        def value(atom: Any) -> Any:
            if isinstance(atom, Literal):
                return atom.val
            return again[atom]() if atom in again else known[atom]

        exponents: dict[Any, Any] = {}  # of differences, and of their exponentials: the larger operand
        for equation in jaxpr.eqns:
            operands = [value(atom) for atom in equation.invars]
            results = self._equation(equation, operands)
            first = next((atom for atom in equation.invars if not isinstance(atom, Literal)), None)
            of_difference = exponents.get(first) if first is not None and first is equation.invars[0] else None
            if equation.primitive.name in _ADDED_UP and uses[equation.outvars[0]] > 1:
                again[equation.outvars[0]] = functools.partial(self._one, equation, operands)
            if equation.primitive.name == "sub":
                exponents[equation.outvars[0]] = _larger(*operands)
            elif equation.primitive.name == "exp" and of_difference is not None:
                exponents[equation.outvars[0]] = of_difference
            elif equation.primitive.name == "div" and of_difference is not None:
                results = [self.changed(results[0], of_difference)]
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _one(self, equation: Any, operands: Sequence[Any]) -> Any:
        return self._equation(equation, operands)[0]

    def _equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in _CALLS:
            inner = next((equation.params[each] for each in _INSIDE if each in equation.params), None)
            if inner is not None:
                return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
        loop = name in ("scan", "while")
        rounded = name in _ROUNDED or loop
        if name in _SUMS or loop:
            operands = [self.changed(each) for each in operands]
        found = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
        results = list(found) if equation.primitive.multiple_results else [found]
        return [self.changed(each) for each in results] if rounded else results

    def changed(self, value: Any, times: Any = 1) -> Any:
        """Changes each element, by so many times the relative change; what are no floats stays."""
        import jax.numpy as jnp

        if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            return value
        self._changes += 1
        # Not JAX's random numbers: hundreds of them take a minute to compile. These are as good here.
        number = jnp.arange(jnp.size(value), dtype=jnp.float64).reshape(jnp.shape(value))
        waves = jnp.sin(number * 12.9898 + 78.233 * self._changes + 3.7 * self._seed) * 43758.5453
        noise = (waves - jnp.floor(waves) - 0.5) * 12**0.5  # uniform, of deviation 1
        return (value * (1 + self._change * times * noise)).astype(jnp.result_type(value))


def _larger(one: Any, other: Any) -> Any:
    import jax.numpy as jnp

    larger = jnp.maximum(jnp.abs(one), jnp.abs(other))
    return jnp.where(jnp.isfinite(larger), larger, 1)  # a score that is masked
