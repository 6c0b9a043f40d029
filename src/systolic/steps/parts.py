"""Assign operations to parts of a model and passes over it, by JAX's name stack.

`jax.named_scope("attention")` in a model puts that name into the name stack of every operation inside, and the
compiler keeps it: "jit(step)/transpose(jvp())/while/body/checkpoint/rematted_computation/attention/dot_general".
Derivatives wrap a stack's names into `jvp(…)` and, backwards, `transpose(jvp(…))`; what `jax.checkpoint` computes again
is marked too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

Pass = Literal["forward", "recompute", "backward", "update", "all"]
PASSES: tuple[Pass, ...] = get_args(Pass)

OTHER = "other"
BETWEEN = "between operations"

_NAME = re.compile(r"[\w.\-<> ]+")
# JAX's own parts of a name stack.
_TRANSFORMATIONS = frozenset({"jit", "pjit", "jvp", "transpose", "vmap", "pmap", "shard_map", "remat", "checkpoint"})
_STRUCTURE = frozenset({"while", "body", "cond", "closed_call", "rematted_computation", "core_call", "scan", "branch"})
_WRAPPED = re.compile(r"(\w+)\((.*)\)")


def part_of(scope: str, parts: Sequence[str]) -> str:
    """Return the part of the model that a name stack belongs to.

    It is the last one in the stack of the named `parts`; without these, the outermost name that is not JAX's own.
    """
    if parts:
        named = [name for name in _NAME.findall(scope) if name in parts]
        return named[-1] if named else OTHER
    # The last name is the operation's own.
    return next((name for name in map(_unwrapped, scope.split("/")[:-1]) if name), OTHER)


def pass_of(scope: str, *, differentiated: bool) -> Pass:
    """Return the pass that a name stack belongs to; outside the derivative of a `differentiated` program the update."""
    if "rematted_computation" in scope:
        return "recompute"
    if "transpose(" in scope:
        return "backward"
    return "update" if differentiated and "jvp(" not in scope else "forward"


def is_differentiated(scopes: Iterable[str]) -> bool:
    """True if a program with these name stacks computes derivatives backwards."""
    return any("transpose(" in scope for scope in scopes)


def _unwrapped(name: str) -> str:
    """Return a name without the transformations around it; "" if JAX made it."""
    while (match := _WRAPPED.fullmatch(name)) is not None:
        if match[1] in ("jit", "pjit"):  # around it stands a function's name, which is no part
            return ""
        name = match[2]
    return "" if name in _STRUCTURE or name in _TRANSFORMATIONS else name
