"""Evaluate a function in float64 with a random relative change at every operation that rounds.

Changing the inputs alone would not show the rounding of a difference of two equal terms: its result is zero for all
inputs, but each term is rounded separately. So the result of every product, sum and elementary function is changed.
The operands of products and sums are changed again at each use, because the terms of a sum are rounded on the way.
Selections, comparisons, maxima and moves are exact and are not changed. Operations that are not known to be exact
count as rounding. Loops and branches are entered, and each round of a loop gets its own changes.

A sum that is used several times gets another change at each use, as if it were computed again in another order: a
kernel that needs it in two places may do so, and then its errors do not cancel.

A softmax is exp(x − max) / sum or, in gradients of flash attention, exp(x − log_sum). The rounding of the larger
operand of that difference cancels in the first form and not in the second. So the quotient of such an exponential is
changed in proportion to that operand.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from systolic.checking.widening import bound_widely, widened
from systolic.compat.jaxpr_values import Environment, scan_parts, while_parts
from systolic.compat.jaxprs import called_function, function_of, functions_inside, is_literal

_SUMS = frozenset(
    ("dot_general", "ragged_dot", "ragged_dot_general", "reduce_sum", "cumsum", "conv_general_dilated", "scatter-add",
     "add", "sub", "add_any", "reduce_window_sum", "psum")
)  # fmt: skip
_EXACT = frozenset(
    ("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "slice", "dynamic_slice", "pad", "rev",
     "dynamic_update_slice", "gather", "scatter", "concatenate", "split", "copy", "copy_p", "select_n", "iota", "max",
     "min", "clamp", "neg", "abs", "sign", "floor", "ceil", "round", "reduce_max", "reduce_min", "cummax", "cummin",
     "scatter-max", "scatter-min", "reduce_window_max", "reduce_window_min", "sort", "top_k", "convert_element_type",
     "bitcast_convert_type", "reduce_precision", "real", "imag", "conj", "complex", "stop_gradient", "device_put",
     "optimization_barrier", "sharding_constraint", "copysign", "nextafter", "all_gather", "all_to_all", "ppermute",
     "pvary", "pmax", "pmin", "tile", "unstack", "name")
)  # fmt: skip
_ADDED_UP = frozenset(("dot_general", "ragged_dot", "ragged_dot_general", "reduce_sum"))
_SEEDS_OF_ROUNDS = 0.7236  # distance of the seeds of two rounds of a loop; seeds of two samples have the distance 1


def perturbed(closed: Any, arguments: Sequence[Any], seed: Any, change: Any) -> list[Any]:
    """Evaluate a closed jaxpr with a change of relative deviation `change` at every argument and every rounding.

    Args:
      closed: the closed jaxpr of the function for these arguments.
      arguments: the flat arguments.
      seed: seed of the changes.
      change: deviation; 0.0: no change.
    """
    evaluation = _Evaluation(seed=seed, change=change)
    return evaluation.run(closed, [evaluation.changed(argument) for argument in arguments])


class _Evaluation:
    def __init__(self, seed: Any, change: Any, changes: int = 0) -> None:
        self._seed = seed
        self._change = change
        self._changes = changes

    def run(self, function: Any, arguments: Sequence[Any]) -> list[Any]:
        jaxpr = function_of(function).jaxpr
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
        if name in _FLOWS:
            return _FLOWS[name](self, equation, operands)
        opaque = bool(functions_inside(equation)) and name not in _SUMS | _EXACT
        if name in _SUMS or opaque:
            operands = [self.changed(operand) for operand in operands]
        results = bound_widely(equation, operands)
        return results if name in _EXACT else [self.changed(result) for result in results]

    def _scan(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        from jax import lax

        parts = scan_parts(equation, operands)

        def step(state: tuple[Any, list[Any]], sliced: list[Any]) -> tuple[Any, list[Any]]:
            number, carried = state
            results = self._in_round(number).run(parts.body, [*parts.constants, *carried, *sliced])
            return (number + 1, results[: len(carried)]), results[len(carried) :]

        length, reverse = equation.params["length"], equation.params.get("reverse", False)
        (_, carried), stacked = lax.scan(step, (1, parts.carried), parts.sliced, length=length, reverse=reverse)
        return [*carried, *stacked]

    def _while(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        from jax import lax

        parts = while_parts(equation, operands)
        exactly = _Evaluation(self._seed, 0.0)
        _, results = lax.while_loop(
            lambda state: exactly.run(parts.condition, [*parts.condition_constants, *state[1]])[0],
            lambda state: (
                state[0] + 1,
                self._in_round(state[0]).run(parts.body, [*parts.body_constants, *state[1]]),
            ),
            (1, list(parts.carried)),
        )
        return results

    def _cond(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        from jax import lax

        branches = [
            lambda *arguments, branch=branch: self.run(branch, arguments) for branch in functions_inside(equation)
        ]
        return lax.switch(operands[0], branches, *operands[1:])

    def _in_round(self, number: Any) -> _Evaluation:
        self._changes += 1
        return _Evaluation(self._seed + _SEEDS_OF_ROUNDS * number, self._change, 1000 * self._changes)

    def changed(self, value: Any, times: Any = 1) -> Any:
        """Change each element of floats, by `times` the relative change."""
        import jax.numpy as jnp

        if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            return value
        self._changes += 1
        # JAX's random numbers take a minute to compile if there are hundreds of calls. These suffice here.
        number = jnp.arange(jnp.size(value), dtype=jnp.float64).reshape(jnp.shape(value))
        waves = jnp.sin(number * 12.9898 + 78.233 * self._changes + 3.7 * self._seed) * 43758.5453
        noise = (waves - jnp.floor(waves) - 0.5) * 12**0.5  # uniform, of deviation 1
        return (value * (1 + self._change * times * noise)).astype(jnp.result_type(value))


_FLOWS: dict[str, Callable[[_Evaluation, Any, Sequence[Any]], list[Any]]] = {
    "scan": _Evaluation._scan,
    "while": _Evaluation._while,
    "cond": _Evaluation._cond,
}


class _Environment(Environment[Any]):
    """Values in float64, some of them computed again at each use."""

    def __init__(self, function: Any, arguments: Sequence[Any]) -> None:
        super().__init__(function, map(widened, arguments), literal=lambda atom: widened(atom.val), constant=widened)
        self.again: dict[Any, Callable[[], list[Any]]] = {}

    def read(self, atom: Any) -> Any:
        if not is_literal(atom) and atom in self.again:
            return self.again[atom]()[0]
        return super().read(atom)


def _larger(first: Any, other: Any) -> Any:
    import jax.numpy as jnp

    larger = jnp.maximum(jnp.abs(first), jnp.abs(other))
    return jnp.where(jnp.isfinite(larger), larger, 1)  # a score that is masked
