"""Operations on their way into JAX: products are decided on, and functions inside of others are traced anew."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from systolic.compat import intercepted
from systolic.ops.engine.backend import Implementation
from systolic.ops.matmul.dot_general import dot_general
from systolic.ops.replacing.decisions import Decision, Policy

# Operations that run functions of theirs, which may be replaced by others of the same types. Those of `custom_jvp`,
# `custom_vjp` and `shard_map` come by another way, see `compat.intercepted`; others are left whole.
_FOLLOWED = frozenset({"checkpoint", "closed_call", "cond", "jit", "pjit", "remat", "remat2", "scan", "while"})
_OURS = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriter:
    """What `compat.intercepted` calls: replaces products, and tells of each.

    Attributes:
      policy: which.
      implementation: of a product that is taken, as `systolic.matmul` takes it.
      tell: is told of every product.
    """

    policy: Policy
    implementation: Implementation
    tell: Callable[[Decision], None]

    def __call__(self, primitive: Any, arguments: Sequence[Any], params: Mapping[str, Any]) -> Any:
        """Return the results of `primitive.bind`, with other products."""
        if primitive is lax.dot_general_p:
            return self._product(arguments, params)
        if primitive.name in _FOLLOWED:
            params = {name: self._followed(value, primitive.name) for name, value in params.items()}
        elif primitive.name != "pallas_call":  # a kernel of somebody's, with products of its own
            for inner in jaxprs_in(params):
                self._leave(inner, f"it is inside of {primitive.name}, which is left whole")
        return primitive.bind(*arguments, **params)

    def _product(self, arguments: Sequence[Any], params: Mapping[str, Any]) -> Any:
        lhs, rhs = arguments
        types = [jax.typeof(each) for each in arguments]
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

    def _followed(self, value: Any, inside: str) -> Any:
        """Return a parameter of an operation with other products in each of its functions."""
        if isinstance(value, tuple):
            return tuple(self._followed(each, inside) for each in value)
        if not isinstance(value, (ClosedJaxpr, Jaxpr)) or not any(products_in(value)):
            return value
        made, decisions = _rewritten(value, self.policy, self.implementation)
        if made is None:
            self._leave(value, f"{inside} takes no other function in the place of the one that it is in")
            return value
        for decision in decisions:
            self.tell(decision)
        return made

    def _leave(self, jaxpr: Any, reason: str) -> None:
        for product in products_in(jaxpr):
            types = [atom.aval for atom in (*product.invars, *product.outvars)]
            self.tell(self.policy.left(types, reason))


# JAX compiles a function once as long as it is the same object: so is what is made of it.
@functools.lru_cache(maxsize=256)
def _rewritten(jaxpr: Any, policy: Policy, implementation: Implementation) -> tuple[Any, tuple[Decision, ...]]:
    """Return a function with other products, and the decisions; None where its types or constants would change."""
    closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
    decisions: list[Decision] = []

    def run(*arguments: Any) -> Any:
        with intercepted(Rewriter(policy=policy, implementation=implementation, tell=decisions.append)):
            return jaxpr_as_fun(closed)(*arguments)

    made = jax.make_jaxpr(run)(*closed.in_avals)
    if _types(made) != _types(closed) or (made.consts and not closed.consts):
        return None, ()
    return made if closed is jaxpr else made.jaxpr, tuple(decisions)


def _types(closed: Any) -> list[Any]:
    """Return types of arguments and results, without the chip that a kernel's result was traced for."""

    def type_of(aval: Any) -> Any:
        sharding = getattr(aval, "sharding", None)
        axes = (sharding.spec, sharding.mesh.axis_names, sharding.mesh.axis_types) if sharding is not None else ()
        return aval.str_short(short_dtypes=False), getattr(aval, "weak_type", False), axes

    return [type_of(aval) for aval in (*closed.in_avals, *closed.out_avals)]


def jaxprs_in(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the functions of an operation, but for systolic's own."""
    for value in params.values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, (ClosedJaxpr, Jaxpr)):
                jaxpr = getattr(each, "jaxpr", each)
                if not str(jaxpr.debug_info.func_filename or "").startswith(_OURS):
                    yield each


def products_in(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of products in a function, and in the functions in it, but for kernels."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive is lax.dot_general_p:
            yield equation
        elif equation.primitive.name != "pallas_call":
            for inner in jaxprs_in(equation.params):
                yield from products_in(inner)
