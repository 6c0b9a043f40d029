"""The choice between Pallas and XLA for ops whose kernels have no batch; `vmap` runs one call after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import Array, lax
from jax.custom_batching import custom_vmap

from systolic.ops.engine.backend import Backend
from systolic.ops.engine.target import NO_CHIP, kernel_or_xla, without_kernel
from systolic.schedule import IllegalTilesError

Run = Callable[..., Array]
T = TypeVar("T")  # an array, or several


def dispatched(backend: Backend, pallas: Callable[..., T], xla: Callable[..., T], *operands: Any) -> T:
    """Compute the op by Pallas or by XLA; raise IllegalTilesError if the caller requires a kernel and no tiles fit."""
    leaves, structure = jax.tree.flatten(operands)

    def by_xla_because(reason: str) -> T:
        return xla(*structure.unflatten([without_kernel(leaves[0], reason), *leaves[1:]]))

    if backend.implementation == "xla" or any(0 in leaf.shape for leaf in leaves):
        return xla(*operands)
    if backend.chip is None:
        return by_xla_because(NO_CHIP)
    if backend.implementation is not None:
        return pallas(*operands)
    if backend.tiles is None:
        try:
            jax.eval_shape(pallas, *operands)
        except IllegalTilesError as error:
            return by_xla_because(f"no tiles fit: {error}")
    return kernel_or_xla(pallas, xla, *operands)


def one_at_a_time(call: Callable[..., T], *operands: Any) -> T:
    """Return `call` of these arrays; under `vmap` one call follows another, because each fills VMEM."""

    @custom_vmap
    def once(*operands: Any) -> T:
        return call(*operands)

    @once.def_vmap
    def _(size: int, mapped: Any, *operands: Any) -> tuple[T, Any]:
        results = each_of_batch(call, size, mapped, operands)
        return results, jax.tree.map(lambda _: True, results)

    return once(*operands)


def each_of_batch(call: Callable[..., T], size: int, mapped: Any, operands: tuple[Any, ...]) -> T:
    """Return the results of a batch of calls, one after another, as a rule of `custom_vmap` returns them."""
    leaves, structure = jax.tree.flatten(operands)
    is_mapped = jax.tree.leaves(mapped)
    batched = [leaf for leaf, is_batched in zip(leaves, is_mapped, strict=True) if is_batched]

    def one(mapped_leaves: list[Any]) -> T:
        batch_leaves = iter(mapped_leaves)
        all_leaves = [
            next(batch_leaves) if is_batched else leaf for leaf, is_batched in zip(leaves, is_mapped, strict=True)
        ]
        return one_at_a_time(call, *structure.unflatten(all_leaves))

    return lax.map(one, batched)
