"""Walk through traced functions: their equations, and the functions inside these.

Every analysis of a jaxpr derives from here: `equations` and `equation_sites` list equations at any depth, `rewritten`
replaces them, and `jaxpr_values.py` carries values from equation to equation.

A jaxpr is open, or closed over constants; from jax 0.12 on both are one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Primitives that call the one function among their parameters once, with all of their operands: unchanged,
PLAIN_CALLS = frozenset(("closed_call", "jit", "remat2", "xla_metadata_call"))
# or replaced by another definition under a transformation or on a platform. "remat_opt" is the forward function of a
# `custom_vjp` with `optimize_remat`, and since jax 0.12 "eval_jaxpr" where the function is not differentiated again.
CALLS = PLAIN_CALLS | frozenset(
    (
        "composite",
        "custom_jvp_call",
        "custom_jvp_call_jaxpr",
        "custom_vjp_call",
        "custom_vmap_call",
        "eval_jaxpr",
        "kernel_or_xla",
        "remat_opt",
    )
)


@dataclass(frozen=True, slots=True)
class Function:
    """A jaxpr with its constants, if it is closed."""

    jaxpr: Any  # as JAX has it, open
    consts: Sequence[Any] = ()  # the values of its first variables

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


@dataclass(frozen=True, slots=True)
class EquationSite:
    """An equation and the way to it."""

    equation: Any  # in `jaxpr`
    jaxpr: Any  # the innermost one
    # Positions of equations in their jaxprs, and after a `cond` the number of the branch, outermost first.
    path: tuple[int, ...]
    callers: tuple[Any, ...]  # the equations around it, outermost first


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


def with_functions(params: Mapping[str, Any], change: Callable[[Any, int], Any]) -> Mapping[str, Any]:
    """Return an equation's parameters with other functions, or the same where none changes.

    `change` gives the jaxpr in the place of one, open or closed as it was; it gets its number in a tuple of several.
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
