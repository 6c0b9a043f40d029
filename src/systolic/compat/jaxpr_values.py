"""Carry values of any kind through traced functions, from equation to equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from systolic.compat.jaxprs import Function, equations, function_of, functions_inside, is_literal

T = TypeVar("T")

# Operations of a kernel that depend on the device that runs them or on others, as their names begin.
_OF_DEVICES = ("dma_", "semaphore_", "get_barrier", "prng_", "axis_index", "device_id", "run_scoped")
_BLOCK_SPACES = ("default", "vmem", "smem")


def unknown(_: Any) -> None:
    """Read nothing from a literal or a constant, for walks that know only arguments; see `Environment`."""


class Environment(Generic[T]):
    """The known values of a jaxpr's variables during a walk through its equations.

    Args:
      function: the jaxpr, open or closed.
      inputs: values of its arguments, in order; `missing` for an argument without a value.
      literal: reads a literal.
      constant: reads a constant of a closed jaxpr.
      missing: the value of variables that were never written.
    """

    def __init__(
        self,
        function: Any,
        inputs: Iterable[T],
        *,
        literal: Callable[[Any], T] = lambda atom: atom.val,
        constant: Callable[[Any], T] = lambda value: value,
        missing: Any = None,
    ) -> None:
        opened = function_of(function)
        self._outvars, self._literal, self._missing = opened.jaxpr.outvars, literal, missing
        values = [*map(constant, opened.consts), *inputs]
        self._known: dict[Any, Any] = dict(zip(opened.variables, values, strict=False))

    def read(self, atom: Any) -> T:
        return self._literal(atom) if is_literal(atom) else self._known.get(atom, self._missing)

    def inputs(self, equation: Any) -> list[T]:
        return [self.read(atom) for atom in equation.invars]

    def write(self, equation: Any, results: Iterable[T]) -> None:
        self._known.update(zip(equation.outvars, results, strict=False))

    def results(self) -> list[T]:
        return [self.read(atom) for atom in self._outvars]


def evaluate(
    function: Any, inputs: Iterable[T], step: Callable[[Any, list[T]], Iterable[T]], **reading: Any
) -> list[T]:
    """Carry values of any kind through a jaxpr, open or closed, to its results.

    Args:
      step: the values of an equation's results, from the equation and the values of its operands.
      **reading: how literals, constants and missing variables are read; see `Environment`.
    """
    environment = Environment[T](function, inputs, **reading)
    for equation in function_of(function).jaxpr.eqns:
        environment.write(equation, step(equation, environment.inputs(equation)))
    return environment.results()


@contextmanager
def as_traced(equation: Any) -> Iterator[None]:
    """Run operations under the source line, the name stack and the settings that an equation was traced with."""
    from jax._src import source_info_util

    source = equation.source_info
    stack = source_info_util.current_name_stack() + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=stack), equation.ctx.manager:
        yield


def bound(equation: Any, operands: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
    """Run or trace an equation with other parameters in place of its own."""
    primitive = equation.primitive
    with as_traced(equation):
        made = primitive.bind(*operands, **primitive.get_bind_params(equation.params if params is None else params))
    return list(made) if primitive.multiple_results else [made]


def computed(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Compute an equation of whole arrays on this machine, also one that was traced for the devices of a mesh."""
    import jax

    primitive = equation.primitive
    # JAX runs nothing on a mesh without devices, nor gives it a sharding.
    params = {key: None if _is_sharding(value) else value for key, value in equation.params.items()}
    with as_traced(equation), jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        made = primitive.bind(*operands, **primitive.get_bind_params(params))
    return list(made) if primitive.multiple_results else [made]


def interpreted(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Compute a Pallas call of `is_interpretable` on this machine."""
    return computed(equation.replace(params={**equation.params, "interpret": True}), operands)


def is_interpretable(equation: Any) -> bool:
    """True if a Pallas call reads and writes blocks of its operands and nothing else, on no device in particular."""
    grid = equation.params["grid_mapping"]
    return (
        not grid.num_scratch_operands
        and all(str(block.transformed_block_aval.memory_space) in _BLOCK_SPACES for block in grid.block_mappings)
        and not any(inner.primitive.name.startswith(_OF_DEVICES) for inner in equations(equation.params["jaxpr"]))
    )


def _is_sharding(value: Any) -> bool:
    import jax

    return isinstance(value, jax.sharding.Sharding)


class ScanParts(NamedTuple, Generic[T]):
    """The operands of a `scan` and the function that it runs."""

    body: Function
    constants: list[T]
    carried: list[T]
    sliced: list[T]


def _scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count a `scan` equation's constants, and its values carried from round to round.

    jax 0.10 and 0.11 have the numbers among the equation's parameters, 0.12 has the three groups of inputs.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def scan_parts(equation: Any, inputs: Sequence[T]) -> ScanParts[T]:
    constants, carried = _scan_counts(equation.params)
    (body,) = functions_inside(equation)
    cuts = constants, constants + carried
    return ScanParts(body, list(inputs[: cuts[0]]), list(inputs[cuts[0] : cuts[1]]), list(inputs[cuts[1] :]))


class WhileParts(NamedTuple, Generic[T]):
    """The operands of a `while` and the two functions that it runs."""

    condition: Function
    body: Function
    condition_constants: list[T]
    body_constants: list[T]
    carried: list[T]


def while_parts(equation: Any, inputs: Sequence[T]) -> WhileParts[T]:
    params = equation.params
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]
    functions = function_of(params["cond_jaxpr"]), function_of(params["body_jaxpr"])
    return WhileParts(*functions, list(inputs[:first]), list(inputs[first:second]), list(inputs[second:]))


def calls_inside(equation: Any, inputs: Sequence[T]) -> Iterator[tuple[Function, list[T]]]:
    """Yield the functions inside an equation, with the values of the operands that each begins with.

    Loops are entered once. A function whose operands do not follow from the equation's operands gets none.
    """
    name = equation.primitive.name
    if name == "while":
        parts = while_parts(equation, inputs)
        yield parts.condition, [*parts.condition_constants, *parts.carried]
        yield parts.body, [*parts.body_constants, *parts.carried]
        return
    operands = list(inputs[1:] if name == "cond" else inputs)
    for function in functions_inside(equation):
        matches = name == "run_scoped" or len(function.jaxpr.invars) == len(operands)
        yield function, operands if matches else []
