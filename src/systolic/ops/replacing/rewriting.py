"""Rewrite operations while JAX traces them: decide on products, and retrace functions inside others."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from systolic.compat import intercepted
from systolic.compat.jaxprs import (
    PLAIN_CALLS,
    Function,
    equation_sites,
    functions_among,
    outside_of_kernels,
    with_functions,
)
from systolic.ops.engine.backend import Implementation
from systolic.ops.matmul.dot_general import dot_general
from systolic.ops.replacing.decisions import Decision, Policy

# Operations that run inner functions, which may be replaced by others of the same types. The functions of `custom_jvp`,
# `custom_vjp` and `shard_map` arrive in another way, see `compat.intercepted`; others are left whole.
_FOLLOWED = PLAIN_CALLS | frozenset(("cond", "scan", "while"))
_OURS = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriter:
    """The callback of `compat.intercepted`: replaces products, and reports each decision."""

    policy: Policy  # decides which products are replaced
    implementation: Implementation  # of a replaced product, as `systolic.matmul` takes it
    tell: Callable[[Decision], None]  # called with the decision on every product

    def __call__(self, primitive: Any, arguments: Sequence[Any], params: Mapping[str, Any]) -> Any:
        """Return the results of `primitive.bind`, with replaced products."""
        if primitive is lax.dot_general_p:
            return self._product(arguments, params)
        if primitive.name in _FOLLOWED:
            params = with_functions(params, lambda function, _: self._followed(function, primitive.name))
        elif primitive.name != "pallas_call":  # a user's kernel with its own products
            for function in itertools.filterfalse(_is_ours, functions_among(params)):
                self._leave(function, f"it is inside of {primitive.name}, which is left whole")
        return primitive.bind(*arguments, **params)

    def _product(self, arguments: Sequence[Any], params: Mapping[str, Any]) -> Any:
        lhs, rhs = arguments
        types = [jax.typeof(argument) for argument in arguments]
        out = jax.eval_shape(functools.partial(lax.dot_general_p.bind, **params), *types)
        decision = self.policy.decide([*types, out], params)
        self.tell(decision)
        if not decision.taken:
            return lax.dot_general_p.bind(lhs, rhs, **params)
        return dot_general(
            lhs,
            rhs,
            params["dimension_numbers"],
            params["precision"],
            out.dtype,
            implementation=self.implementation,
            chip=self.policy.chip,
        )

    def _followed(self, function: Any, inside: str) -> Any:
        if not any(products_in(function)):
            return function
        rewritten, decisions = _rewritten(function, self.policy, self.implementation)
        if rewritten is None:
            self._leave(function, f"{inside} takes no other function in the place of the one that it is in")
            return function
        for decision in decisions:
            self.tell(decision)
        return rewritten

    def _leave(self, function: Any, reason: str) -> None:
        for product in products_in(function):
            types = [atom.aval for atom in (*product.invars, *product.outvars)]
            self.tell(self.policy.left(types, reason))


# JAX compiles a function once as long as it is the same object: so the rewritten function is cached.
@functools.lru_cache(maxsize=256)
def _rewritten(jaxpr: Any, policy: Policy, implementation: Implementation) -> tuple[Any, tuple[Decision, ...]]:
    """Return a function with replaced products, and the decisions; None if its types or constants would change."""
    closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
    decisions: list[Decision] = []

    def run(*arguments: Any) -> Any:
        with intercepted(Rewriter(policy=policy, implementation=implementation, tell=decisions.append)):
            return jaxpr_as_fun(closed)(*arguments)

    rewritten = jax.make_jaxpr(run)(*closed.in_avals)
    if _types(rewritten) != _types(closed) or (rewritten.consts and not closed.consts):
        return None, ()
    return rewritten if closed is jaxpr else rewritten.jaxpr, tuple(decisions)


def _types(closed: Any) -> list[Any]:
    """Return types of arguments and results, without the chip that a kernel's result was traced for."""

    def type_of(aval: Any) -> Any:
        sharding = getattr(aval, "sharding", None)
        axes = (sharding.spec, sharding.mesh.axis_names, sharding.mesh.axis_types) if sharding is not None else ()
        return aval.str_short(short_dtypes=False), getattr(aval, "weak_type", False), axes

    return [type_of(aval) for aval in (*closed.in_avals, *closed.out_avals)]


def products_in(function: Any) -> Iterator[Any]:
    """Yield the equations of products in a function and its inner functions, except kernels and systolic's own."""

    def enter(equation: Any, function: Function) -> bool:
        return outside_of_kernels(equation, function) and not _is_ours(function)

    sites = equation_sites(function, enter)
    return (site.equation for site in sites if site.equation.primitive is lax.dot_general_p)


def _is_ours(function: Function) -> bool:
    return str(function.jaxpr.debug_info.func_filename or "").startswith(_OURS)
