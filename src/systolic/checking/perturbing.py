"""Evaluates a function with a random relative change at everything that it rounds.

What a reference responds to a change of its inputs alone says nothing of a difference of two equal terms: its result is
zero, whatever the inputs are, and yet each term is rounded by itself. So every product, sum and elementary function is
changed, and the operands of products and sums once more at each use, as the terms of a sum are rounded on the way.
Selections, comparisons, maxima and moves are exact, and stay.

A sum that is used several times gets another change at each use, as if added up again in another order. A kernel
that needs it in two places may do so, and then what the uses have in common does not cancel.

A softmax is exp(x − max) / sum, and exp(x − log_sum) as well, as gradients of flash attention have it. Rounding of the
larger operand of that difference cancels in the first and stays in the second: so what divides such an exponential gets
the change of both.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from systolic.compat.jaxpr_values import Environment, bound
from systolic.compat.jaxprs import called_function, is_literal

_SUMS = frozenset(("dot_general", "reduce_sum", "cumsum", "conv_general_dilated", "add", "sub", "add_any"))
_ROUNDED = _SUMS | frozenset(
    (
        *("mul", "div", "rem", "square", "sqrt", "rsqrt", "cbrt", "pow", "integer_pow", "exp", "exp2", "expm1", "log"),
        *("log1p", "tanh", "logistic", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh"),
        *("acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma", "reduce_prod", "cumprod", "cumlogsumexp"),
    )
)
_ADDED_UP = frozenset(("dot_general", "reduce_sum"))


def perturbed(closed: Any, arguments: Sequence[Any], seed: Any, change: Any) -> list[Any]:
    """Evaluates a closed jaxpr with a change of relative deviation `change` at every argument and every rounding.

    Args:
      closed: of the function, for these arguments.
      arguments: flat.
      seed: of the changes.
      change: 0.0: none.
    """
    evaluation = _Evaluation(seed=seed, change=change)
    return evaluation.run(closed, [evaluation.changed(argument) for argument in arguments])


class _Evaluation:
    def __init__(self, seed: Any, change: Any) -> None:
        self._seed = seed
        self._change = change
        self._changes = 0

    def run(self, function: Any, arguments: Sequence[Any]) -> list[Any]:
        jaxpr = getattr(function, "jaxpr", function)
        uses = Counter(
            atom
            for atoms in (*(equation.invars for equation in jaxpr.eqns), jaxpr.outvars)
            for atom in atoms
            if not is_literal(atom)
        )
        environment = _Environment(function, arguments)
        exponents: dict[Any, Any] = {}  # of differences, and of their exponentials: the larger operand
        for equation in jaxpr.eqns:
            operands = environment.inputs(equation)
            results = self._equation(equation, operands)
            first = next((atom for atom in equation.invars if not is_literal(atom)), None)
            of_difference = exponents.get(first) if first is not None and first is equation.invars[0] else None
            if equation.primitive.name in _ADDED_UP and uses[equation.outvars[0]] > 1:
                environment.again[equation.outvars[0]] = functools.partial(self._equation, equation, operands)
            if equation.primitive.name == "sub":
                exponents[equation.outvars[0]] = _larger(*operands)
            elif equation.primitive.name == "exp" and of_difference is not None:
                exponents[equation.outvars[0]] = of_difference
            elif equation.primitive.name == "div" and of_difference is not None:
                results = [self.changed(results[0], of_difference)]
            environment.write(equation, results)
        return environment.results()

    def _equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        name = equation.primitive.name
        function = called_function(equation)
        if function is not None:
            return self.run(function, operands)
        loop = name in ("scan", "while")
        rounded = name in _ROUNDED or loop
        if name in _SUMS or loop:
            operands = [self.changed(operand) for operand in operands]
        results = bound(equation, operands)
        return [self.changed(result) for result in results] if rounded else results

    def changed(self, value: Any, times: Any = 1) -> Any:
        """Changes each element of floats, by `times` the relative change."""
        import jax.numpy as jnp

        if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            return value
        self._changes += 1
        # Not JAX's random numbers: hundreds of them take a minute to compile. These are as good here.
        number = jnp.arange(jnp.size(value), dtype=jnp.float64).reshape(jnp.shape(value))
        waves = jnp.sin(number * 12.9898 + 78.233 * self._changes + 3.7 * self._seed) * 43758.5453
        noise = (waves - jnp.floor(waves) - 0.5) * 12**0.5  # uniform, of deviation 1
        return (value * (1 + self._change * times * noise)).astype(jnp.result_type(value))


class _Environment(Environment[Any]):
    """Values, some of them computed again at each use."""

    def __init__(self, function: Any, arguments: Sequence[Any]) -> None:
        super().__init__(function, arguments)
        self.again: dict[Any, Callable[[], list[Any]]] = {}

    def read(self, atom: Any) -> Any:
        if not is_literal(atom) and atom in self.again:
            return self.again[atom]()[0]
        return super().read(atom)


def _larger(first: Any, other: Any) -> Any:
    import jax.numpy as jnp

    larger = jnp.maximum(jnp.abs(first), jnp.abs(other))
    return jnp.where(jnp.isfinite(larger), larger, 1)  # a score that is masked
