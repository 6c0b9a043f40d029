"""Follow how a jaxpr's values depend on positions in a block.

Every dimension of every value goes along a dimension of the block, or all elements along it are the same, or it is the
function's own: an `iota`, a stack of candidates. Primitives that work along dimensions may do so along a function's own
dimensions, where they see the same for every block; never along the block's. If a dimension of the block meets one of
the function's own, elements would depend on their place.

Only primitives whose effect is known are accepted (`primitives.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from systolic.compat.jaxpr_values import evaluate, scan_parts, while_parts
from systolic.compat.jaxprs import called_function, function_of, functions_inside
from systolic.ops.functions.primitives import ELEMENTWISE, OF_CONSTANTS, REDUCTIONS, WITHIN

Along = int | Literal["same", "own"]  # the number of a dimension of the block, or one of the other two kinds


class NotElementwiseError(Exception):
    """An element would depend on others, or on its place; the text goes on after "it"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The places of a value's elements in the block."""

    along: tuple[Along, ...]  # for each of its dimensions
    of_block: bool  # made from the block, and not only from constants
    origin: str = ""  # names of the function's own dimensions, for messages

    @classmethod
    def block(cls, shape: Sequence[int], along: Sequence[Along]) -> Followed:
        """Return an argument of the function. Along a dimension of one element all elements are the same."""
        return cls(along=_short(shape, along), of_block=True)

    @classmethod
    def constant(cls, shape: Sequence[int], origin: str) -> Followed:
        """Return a value that does not depend on the block; nothing else is known of it."""
        return cls(along=_short(shape, ("own",) * len(shape)), of_block=False, origin=origin)

    def expect(self, axes: Sequence[int]) -> None:
        """Raise unless each element is at its place in the block."""
        for along, axis in zip(self.along, axes, strict=True):
            if along not in ("same", axis):
                raise NotElementwiseError(self._places() if along == "own" else "transposes its block")

    def _places(self) -> str:
        return f"has {self.origin}, by which an element depends on its place"


class Follower:
    """Follows values through a jaxpr, and records the primitives that they pass."""

    def __init__(self) -> None:
        self.steps: list[Any] = []  # primitives, and every number that decides the result
        self.captured: list[Any] = []  # constants of jaxprs
        self.has_own_derivative = False  # a user may define any derivative

    def follow(self, closed: Any, inputs: Sequence[Followed]) -> list[Followed]:
        """Return the outputs of a jaxpr; raise NotElementwiseError if elements would be mixed."""
        self.captured += function_of(closed).consts

        def step(equation: Any, operands: list[Followed]) -> list[Followed]:
            numbers = [value for value in equation.params.values() if isinstance(value, (bool, int, float, str))]
            self.steps.append((equation.primitive.name, repr(numbers)))
            return self._through(equation, operands)

        return evaluate(closed, inputs, step, literal=lambda atom: self._constant(atom.val), constant=self._constant)

    def _constant(self, value: Any) -> Followed:
        shape = np.shape(value)
        if isinstance(value, Tracer):
            raise NotElementwiseError(
                f"closes over a traced value of shape {list(shape)}, and a kernel has no other inputs than its operands"
            )
        if jnp.issubdtype(jax.typeof(value).dtype, jax.dtypes.extended):
            raise NotElementwiseError("closes over a PRNG key, and blocks would all draw the same")
        self.steps.append(np.asarray(value).tobytes())
        return Followed.constant(shape, f"an array of shape {list(shape)} that it closes over")

    def _through(self, equation: Any, operands: list[Followed]) -> list[Followed]:
        name = equation.primitive.name
        shapes = [atom.aval.shape for atom in equation.outvars]
        if equation.effects:
            raise NotElementwiseError(f"has {name}, which has an effect")
        self.has_own_derivative |= name.startswith(("custom_jvp", "custom_vjp"))
        function = called_function(equation)
        if function is not None:
            return self.follow(function, operands)
        if name in _CONTROL:
            return _CONTROL[name](self, equation, operands)
        if name in _PLACING:
            (operand,) = operands
            return [_made(shapes[0], _PLACING[name](equation, operand), operands)]
        rank = len(shapes[0]) if shapes else 0
        if name in ELEMENTWISE and all(len(atom.aval.shape) in (0, rank) for atom in equation.invars):
            return [_made(shapes[0], _joined(operands, rank), operands)]
        if name in REDUCTIONS | WITHIN:
            return self._along(equation, operands)
        if name not in OF_CONSTANTS or any(operand.of_block for operand in operands):
            raise NotElementwiseError(f"has {name}, which is not known to keep elements apart")
        self.steps.append([atom.aval.shape for atom in equation.invars])
        self.steps.append(repr([value for value in equation.params.values() if isinstance(value, tuple)]))
        return [Followed.constant(shape, name) for shape in shapes]

    def _along(self, equation: Any, operands: list[Followed]) -> list[Followed]:
        """Return the results of a primitive that works along operands' dimensions, all of them the function's own."""
        name, shape = equation.primitive.name, equation.invars[0].aval.shape
        worked = _worked_along(equation)
        places = _joined(operands, len(shape))
        if name == "stack":
            places.insert(worked[0], "own")
        elif any(isinstance(places[dimension], int) for dimension in worked):
            raise NotElementwiseError(f"has {name} along a dimension of its block")
        else:
            per_dimension = [
                value for value in equation.params.values() if isinstance(value, tuple) and len(value) == len(shape)
            ]
            self.steps.append([(shape[at], *(str(value[at]) for value in per_dimension)) for at in worked])
        result: list[Along] = ["own" if at in worked else along for at, along in enumerate(places)]
        if name in REDUCTIONS:
            result = [along for at, along in enumerate(result) if at not in worked]
        return [_made(atom.aval.shape, result, operands, name) for atom in equation.outvars]


def _worked_along(equation: Any) -> tuple[int, ...]:
    """Return the dimensions whose elements a primitive mixes, moves or leaves out."""
    params = equation.params
    if "axes" in params:
        return tuple(params["axes"])
    if "dimensions" in params:
        return tuple(params["dimensions"])
    if "axis" in params or "dimension" in params:
        return (params.get("axis", params.get("dimension")),)
    if "padding_config" in params:
        return tuple(at for at, padding in enumerate(params["padding_config"]) if any(padding))
    shape, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return tuple(at for at, (size, out_size) in enumerate(zip(shape, out, strict=True)) if size != out_size)


def _short(shape: Sequence[int], along: Sequence[Along]) -> tuple[Along, ...]:
    return tuple("same" if size == 1 else axis for size, axis in zip(shape, along, strict=True))


def _made(shape: Sequence[int], along: Sequence[Along], operands: Sequence[Followed], origin: str = "") -> Followed:
    short = _short(shape, along)
    origins = [operand.origin for operand in operands if "own" in operand.along]
    return Followed(
        along=short,
        of_block=any(operand.of_block for operand in operands),
        origin="" if "own" not in short else origins[0] if origins else origin,
    )


def _joined(values: Sequence[Followed], rank: int) -> list[Along]:
    """Return the places of elements made of these values' elements at the same place."""
    places: list[Along] = []
    for dimension in range(rank):
        kinds: set[Along] = {value.along[dimension] for value in values if value.along}
        kinds.discard("same")
        if len(kinds) > 1:
            value_of_function = next(
                (value for value in values if value.along and value.along[dimension] == "own"), None
            )
            raise NotElementwiseError(
                value_of_function._places()
                if value_of_function is not None
                else "combines a row of its block with a column"
            )
        places.append(kinds.pop() if kinds else "same")
    return places


# Primitives that move whole dimensions: the places of the result's elements.


def _broadcast(equation: Any, operand: Followed) -> list[Along]:
    shape, operand_shape = equation.params["shape"], equation.invars[0].aval.shape
    result: list[Along] = ["same"] * len(shape)
    for dimension, to in enumerate(equation.params["broadcast_dimensions"]):
        if operand_shape[dimension] == shape[to]:
            result[to] = operand.along[dimension]
    return result


def _reshape(equation: Any, operand: Followed) -> list[Along]:
    """Reshape: dimensions of one element may come and go. Others stay, unless all elements are the same."""
    operand_shape, shape = equation.invars[0].aval.shape, equation.params["new_sizes"]
    if all(along == "same" for along in operand.along):
        return ["same"] * len(shape)
    if equation.params["dimensions"] is None and [s for s in operand_shape if s != 1] == [s for s in shape if s != 1]:
        long_dimensions: list[Along] = [
            along for along, size in zip(operand.along, operand_shape, strict=True) if size != 1
        ]
        result: list[Along] = ["same"] * len(shape)
        for along, at in zip(long_dimensions, [at for at, size in enumerate(shape) if size != 1], strict=True):
            result[at] = along
        return result
    if any(isinstance(along, int) for along in operand.along):
        raise NotElementwiseError(f"has reshape, of {list(operand_shape)} to {list(shape)}")
    return ["own"] * len(shape)


def _squeeze(equation: Any, operand: Followed) -> list[Along]:
    dropped = equation.params["dimensions"]
    return [along for at, along in enumerate(operand.along) if at not in dropped]


def _transpose(equation: Any, operand: Followed) -> list[Along]:
    return [operand.along[at] for at in equation.params["permutation"]]


_PLACING: dict[str, Callable[[Any, Followed], list[Along]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
}


# Control flow: one scalar decides for all elements.


def _either(first: Sequence[Followed], second: Sequence[Followed], *deciding: Followed) -> list[Followed]:
    return [
        Followed(
            along=tuple(_joined((former, later), len(former.along))),
            of_block=any(value.of_block for value in (former, later, *deciding)),
            origin=former.origin or later.origin,
        )
        for former, later in zip(first, second, strict=True)
    ]


def _cond(follower: Follower, equation: Any, values: list[Followed]) -> list[Followed]:
    decides, *operands = values
    first, *others = (follower.follow(branch, operands) for branch in functions_inside(equation))
    result = _either(first, first, decides)
    for other in others:
        result = _either(result, other)
    return result


def _while(follower: Follower, equation: Any, operands: list[Followed]) -> list[Followed]:
    condition, body, condition_consts, body_consts, carried = while_parts(equation, operands)
    while True:
        (decides,) = follower.follow(condition, [*condition_consts, *carried])
        outs = follower.follow(body, [*body_consts, *carried])
        carried_next = _either(carried, outs, decides)
        if carried_next == carried:
            return carried
        carried = carried_next


def _scan(follower: Follower, equation: Any, operands: list[Followed]) -> list[Followed]:
    body, constants, carried, rounds = scan_parts(equation, operands)
    n_carried = len(carried)
    if any(isinstance(value.along[0], int) for value in rounds):
        raise NotElementwiseError("has scan along a dimension of its block")
    rows = [Followed(along=value.along[1:], of_block=value.of_block, origin=value.origin) for value in rounds]
    while True:
        outs = follower.follow(body, [*constants, *carried, *rows])
        carried_next = _either(carried, outs[:n_carried])
        if carried_next == carried:
            break
        carried = carried_next
    stacked = zip(equation.outvars[n_carried:], outs[n_carried:], strict=True)
    return [*carried, *(_made(atom.aval.shape, ("own", *value.along), [value], "scan") for atom, value in stacked)]


_CONTROL: dict[str, Callable[[Follower, Any, list[Followed]], list[Followed]]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
