"""Find the arguments of a traced function whose values decide what its program executes.

Each value is followed as the set of the arguments that it depends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.compat.jaxpr_values import calls_inside, evaluate, scan_parts, while_parts
from systolic.compat.jaxprs import CALLS, called_function, function_of, functions_inside
from systolic.compiler.blame import short_place, written_at

# Flat arguments, by number.
_Arguments = frozenset[int]
_NONE: _Arguments = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A place in a function where values decide what is executed, or how often."""

    effect: str  # the effect of the values: "how often the while loop runs"
    arguments: frozenset[int]  # arguments that the values depend on, by number among the flat arguments
    kernel: bool  # a Pallas kernel decides by operands, which `typical` may name
    where: str  # "file.py:12 in name", or ""

    @property
    def text(self) -> str:
        return f"{self.effect} ({short_place(self.where)})" if self.where else self.effect


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedArgument:
    """One flat argument of a traced function."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def traced_arguments(closed_jaxpr: Any) -> list[TracedArgument]:
    """List a traced function's flat arguments, with the names that its definition gives them."""
    avals = closed_jaxpr.in_avals
    debug_info = function_of(closed_jaxpr).jaxpr.debug_info
    names = getattr(debug_info, "arg_names", None) or ()
    names = names if len(names) == len(avals) else range(len(avals))
    return [
        TracedArgument(name=str(name), shape=tuple(aval.shape), dtype=aval.dtype)
        for name, aval in zip(names, avals, strict=True)
    ]


def decisions(closed_jaxpr: Any) -> list[Decision]:
    """List the decisions that depend on arguments, in the order of the function's text.

    They are conditions of `while`, branches of `cond`, group sizes of ragged products, and of Pallas kernels dynamic
    grids, scalar-prefetch operands and operands in SMEM. Kernels' bodies are not looked into.
    """
    walk = _Walk()
    walk.run(closed_jaxpr, [frozenset((number,)) for number in range(len(closed_jaxpr.in_avals))])
    return [
        Decision(effect=effect, arguments=arguments, kernel=kernel, where=written_at(equation))
        for equation, effect, arguments, kernel in walk.decisions.values()
        if arguments
    ]


class _Walk:
    def __init__(self) -> None:
        # By equation and effect: a loop's body is gone through more than once.
        self.decisions: dict[tuple[int, str], tuple[Any, str, _Arguments, bool]] = {}

    def run(self, function: Any, inputs: Sequence[_Arguments]) -> list[_Arguments]:
        return evaluate(function, inputs, self._step, literal=lambda _: _NONE, constant=lambda _: _NONE, missing=_NONE)

    def _decide(self, equation: Any, effect: str, arguments: _Arguments, *, kernel: bool = False) -> None:
        self.decisions[id(equation), effect] = equation, effect, arguments, kernel

    def _step(self, equation: Any, inputs: list[_Arguments]) -> Iterable[_Arguments]:
        name = equation.primitive.name
        together = _NONE.union(*inputs)
        if name == "while":
            return self._while(equation, inputs)
        if name == "scan":
            return self._scan(equation, inputs)
        if name == "cond":
            return self._cond(equation, inputs)
        if name == "pallas_call":
            self._kernel(equation, inputs)
        elif name in CALLS:
            return self.run(called_function(equation), inputs)
        elif name == "ragged_dot_general":
            self._decide(equation, "how many rows of the ragged product each group has", inputs[2])
        else:
            for function, operands in calls_inside(equation, inputs):
                self.run(function, operands or [together] * len(function.jaxpr.invars))
        return [together] * len(equation.outvars)

    def _while(self, equation: Any, inputs: list[_Arguments]) -> list[_Arguments]:
        condition, body, condition_constants, body_constants, carried = while_parts(equation, inputs)

        def next_round(carried: list[_Arguments]) -> list[_Arguments]:
            (decides,) = self.run(condition, [*condition_constants, *carried])
            self._decide(equation, "how often the while loop runs", decides)
            return [decides | value for value in self.run(body, [*body_constants, *carried])]

        return _fixed_point(next_round, carried)

    def _scan(self, equation: Any, inputs: list[_Arguments]) -> list[_Arguments]:
        body, constants, carried, sliced = scan_parts(equation, inputs)
        count = len(carried)
        carried = _fixed_point(lambda values: self.run(body, [*constants, *values, *sliced])[:count], carried)
        return [*carried, *self.run(body, [*constants, *carried, *sliced])[count:]]

    def _cond(self, equation: Any, inputs: list[_Arguments]) -> list[_Arguments]:
        self._decide(equation, "which branch of the cond runs", inputs[0])
        branches = [self.run(branch, inputs[1:]) for branch in functions_inside(equation)]
        return [inputs[0].union(*results) for results in zip(*branches, strict=True)]

    def _kernel(self, equation: Any, inputs: list[_Arguments]) -> None:
        mapping = equation.params["grid_mapping"]
        body = function_of(equation.params["jaxpr"]).jaxpr
        name = f"kernel {equation.params.get('name') or body.debug_info.func_name}"
        bounds = mapping.num_dynamic_grid_bounds
        operands = inputs[bounds:]
        scalars, blocks = operands[: mapping.num_index_operands], operands[mapping.num_index_operands :]
        in_smem = [
            arguments
            for arguments, ref in zip(blocks, body.invars[mapping.num_index_operands :], strict=False)
            if str(getattr(ref.aval, "memory_space", "")) == "smem"
        ]
        self._decide(equation, f"the grid of the {name}", _NONE.union(*inputs[:bounds]), kernel=True)
        self._decide(equation, f"what the {name} does by scalar prefetch", _NONE.union(*scalars), kernel=True)
        self._decide(equation, f"what the {name} does by operands in SMEM", _NONE.union(*in_smem), kernel=True)


def _fixed_point(
    next_round: Callable[[list[_Arguments]], list[_Arguments]], carried: list[_Arguments]
) -> list[_Arguments]:
    """Repeat a loop's body until the carried values depend on no more arguments."""
    while True:
        after = [before | value for before, value in zip(carried, next_round(carried), strict=True)]
        if after == carried:
            return carried
        carried = after
