"""Whether a step moves arrays to the memory of the host, whose link to the chips is not simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from systolic.compiler import Target, inner_jaxprs, traced_jaxpr
from systolic.simulator import SimulationError


class HostMemoryError(SimulationError):
    """A step keeps arrays in the host's memory."""


def check_host_memory(fn: Any, args: Sequence[Any], target: Target, settings: Mapping[str, Any]) -> None:
    """Looks for arrays in the host's memory before anything is compiled, which may take half an hour.

    Raises:
      HostMemoryError: there are some.
    """
    import jax

    jaxpr = traced_jaxpr(fn, args, target, settings=settings)
    kept = [leaf for leaf in jax.tree.leaves(args) if "host" in (getattr(leaf.sharding, "memory_kind", None) or "")]
    if kept or any(_moves_to_host(equation) for equation in _equations(jaxpr.jaxpr)):
        raise HostMemoryError(
            "the step moves arrays to the host's memory, and copies between host and chip are not simulated: keep them "
            "on the device, or compute them again (remat), as MaxText's remat_policy=full does in place of offload"
        )


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation.params):
            yield from _equations(inner.jaxpr)


def _moves_to_host(equation: Any) -> bool:
    return equation.primitive.name == "device_put" and any(
        "host" in str(getattr(place, "memory_kind", None) or place).lower() for place in equation.params["devices"]
    )
