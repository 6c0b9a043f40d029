"""Walks through traced functions: their equations, the functions inside of these, and values from equation to equation.

Every analysis of a jaxpr derives from here. `equations` and `equation_sites` list equations at any depth, `evaluate`
carries values of any kind through one jaxpr, `calls_inside` says with which values the functions inside of an equation
begin, and `rewritten` replaces equations at any depth.

A jaxpr is open, or closed over constants; from jax 0.12 on both are one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from systolic.compat.functions import scan_counts

T = TypeVar("T")

# Primitives that call the one function among their parameters once, with all of their operands: as it is,
PLAIN_CALLS = frozenset(("closed_call", "jit", "remat2", "xla_metadata_call"))
# or but for a transformation or a platform, for which somebody has defined something else.
CALLS = PLAIN_CALLS | frozenset(
    ("composite", "custom_jvp_call", "custom_jvp_call_jaxpr", "custom_vjp_call", "custom_vmap_call")
)


@dataclass(frozen=True, slots=True)
class Function:
    """A jaxpr with its constants, if it is closed.

    Attributes:
      jaxpr: as JAX has it, open.
      consts: the values of its first variables.
    """

    jaxpr: Any
    consts: Sequence[Any] = ()

    @property
    def variables(self) -> list[Any]:
        """All variables that have a value before the first equation: constants, then arguments."""
        return [*self.jaxpr.constvars, *self.jaxpr.invars]


def function_of(jaxpr: Any) -> Function:
    """Take an open or a closed jaxpr apart."""
    return (
        jaxpr if isinstance(jaxpr, Function) else Function(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()))
    )


def is_literal(atom: Any) -> bool:
    return hasattr(atom, "val")


def functions_among(params: Mapping[str, Any]) -> list[Function]:
    """List the functions among the parameters of an equation: callees, branches, bodies of loops and of kernels."""
    values = (value if isinstance(value, (tuple, list)) else (value,) for value in params.values())
    return [function_of(member) for members in values for member in members if hasattr(member, "eqns")]


def functions_inside(equation: Any) -> list[Function]:
    """List the functions inside of an equation, as its operands fit them."""
    functions = functions_among(equation.params)
    if equation.primitive.name == "run_scoped":  # its operands are the values of what it closes over
        return [Function(function.jaxpr) for function in functions]
    return functions


def called_function(equation: Any) -> Function | None:
    """Return the function that an equation of one of the `CALLS` calls with its operands; None for other equations."""
    return functions_inside(equation)[0] if equation.primitive.name in CALLS else None


# ---- equations at any depth ----


@dataclass(frozen=True, slots=True)
class EquationSite:
    """An equation and the way to it.

    Attributes:
      equation: in `jaxpr`.
      jaxpr: the innermost one.
      path: positions of equations in their jaxprs, and after a `cond` the number of the branch, outermost first.
      callers: the equations around it, outermost first.
    """

    equation: Any
    jaxpr: Any
    path: tuple[int, ...]
    callers: tuple[Any, ...]


def equation_sites(jaxpr: Any, enter: Callable[[Any, Function], bool] = lambda *_: True) -> Iterator[EquationSite]:
    """Yield every equation of a jaxpr and of the functions inside of it, in the order of the text.

    Args:
      jaxpr: open or closed.
      enter: whether to go into a function inside of an equation.
    """

    def below(jaxpr: Any, path: tuple[int, ...], callers: tuple[Any, ...]) -> Iterator[EquationSite]:
        for number, equation in enumerate(jaxpr.eqns):
            here = (*path, number)
            yield EquationSite(equation, jaxpr, here, callers)
            for at, function in enumerate(functions_inside(equation)):
                if enter(equation, function):
                    yield from below(function.jaxpr, _path_inside(equation, here, at), (*callers, equation))

    return below(function_of(jaxpr).jaxpr, (), ())


def _path_inside(equation: Any, path: tuple[int, ...], number: int) -> tuple[int, ...]:
    return (*path, number) if equation.primitive.name == "cond" else path


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every equation of a jaxpr and of the functions inside of it, in the order of the text."""
    return (site.equation for site in equation_sites(jaxpr))


def outside_of_kernels(equation: Any, function: Function) -> bool:
    """Keep `equation_sites` out of the bodies of Pallas calls."""
    return equation.primitive.name != "pallas_call"


def iterations(equation: Any) -> int | None:
    """Count how often one execution of an equation runs the functions inside; None if a value decides."""
    name = equation.primitive.name
    return None if name == "while" else equation.params["length"] if name == "scan" else 1


# ---- values from equation to equation ----


def unknown(_: Any) -> None:
    """Read nothing from a literal or a constant, for walks that know of arguments alone; see `Environment`."""


class Environment(Generic[T]):
    """The known values of a jaxpr's variables, while its equations are gone through in order.

    Args:
      function: the jaxpr, open or closed.
      inputs: of its arguments, in order; what has none is `missing`.
      literal: reads a literal.
      constant: reads a constant of a closed jaxpr.
      missing: of variables that were never written.
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
    """Carry values of any kind through a jaxpr to its results.

    Args:
      function: the jaxpr, open or closed.
      inputs: the values of its arguments.
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
    """Run an equation, or trace it.

    Args:
      equation: any.
      operands: arrays, tracers or references.
      params: in the place of the equation's.
    """
    primitive = equation.primitive
    with as_traced(equation):
        made = primitive.bind(*operands, **primitive.get_bind_params(equation.params if params is None else params))
    return list(made) if primitive.multiple_results else [made]


class ScanParts(NamedTuple, Generic[T]):
    """The operands of a `scan` and the function that it runs."""

    body: Function
    constants: list[T]
    carried: list[T]
    sliced: list[T]


def scan_parts(equation: Any, inputs: Sequence[T]) -> ScanParts[T]:
    constants, carried = scan_counts(equation.params)
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
    """Yield the functions inside of an equation, with the values of the operands that each begins with.

    Loops are entered once. A function whose operands do not follow from the equation's gets none.
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


# ---- other equations in the place of some ----


def with_functions(params: Mapping[str, Any], change: Callable[[Any, int], Any]) -> Mapping[str, Any]:
    """Return an equation's parameters with other functions, or the same where none changes.

    Args:
      params: of the equation.
      change: the jaxpr, open or closed as it was, in the place of one; is given its number in a tuple of several.
    """

    def changed(value: Any, number: int = 0) -> Any:
        if isinstance(value, tuple) and any(hasattr(member, "eqns") for member in value):
            members = tuple(changed(member, at) for at, member in enumerate(value))
            return value if _are_same(members, value) else members
        return change(value, number) if hasattr(value, "eqns") else value

    made = {name: changed(value) for name, value in params.items()}
    return params if _are_same(made.values(), params.values()) else made


def _are_same(values: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(value is other for value, other in zip(values, others, strict=True))


def with_jaxpr(function: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a change of open jaxprs to an open or a closed one."""
    before = getattr(function, "jaxpr", function)
    after = change(before)
    if after is before:
        return function
    return after if before is function else function.replace(jaxpr=after)


def rewritten(jaxpr: Any, change: Callable[[Any, tuple[int, ...]], Any]) -> Any:
    """Replace equations of a jaxpr, open or closed, and of the functions inside of it.

    Args:
      jaxpr: stays as it is; what is returned shares all that did not change.
      change: the equation in the place of one at a path (see `EquationSite`); None: go on inside of it.
    """

    def below(jaxpr: Any, path: tuple[int, ...]) -> Any:
        made = [replaced(equation, (*path, number)) for number, equation in enumerate(jaxpr.eqns)]
        return jaxpr if _are_same(made, jaxpr.eqns) else jaxpr.replace(eqns=made)

    def replaced(equation: Any, path: tuple[int, ...]) -> Any:
        if (replacement := change(equation, path)) is not None:
            return replacement

        def inside(function: Any, number: int) -> Any:
            return with_jaxpr(function, lambda opened: below(opened, _path_inside(equation, path, number)))

        params = with_functions(equation.params, inside)
        return equation if params is equation.params else equation.replace(params=params)

    return with_jaxpr(jaxpr, lambda opened: below(opened, ()))
