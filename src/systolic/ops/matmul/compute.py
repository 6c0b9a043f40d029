"""Computes one product, by Pallas or by XLA, for any number of batch dimensions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array, lax
from jax.custom_batching import custom_vmap

from systolic.ops.linear import floating, linear, perturbed
from systolic.ops.matmul.pallas import by_pallas
from systolic.ops.matmul.product import Product, Where
from systolic.ops.matmul.xla import by_xla
from systolic.ops.shapes import is_symbolic
from systolic.ops.target import without_kernel
from systolic.spec import SpecError

Fn = Callable[..., Any]

_NO_CHIP = (
    "it was traced where no TPU that systolic knows is in sight; say whose tiles are wanted, as with "
    'chip="v6e", or implementation="xla" where XLA is'
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def compute(product: Product, *arrays: Array) -> tuple[Array, ...]:
    """All outputs, each [*batch, m, n]; differentiable in both modes, any number of times, by XLA.

    Args:
      arrays: lhs, rhs and the extras, as `product.py` describes them.
    """
    return _batched(product, *arrays)


@functools.partial(compute.defjvp, symbolic_zeros=True)
def _compute_tangent(
    product: Product, arrays: tuple[Array, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
    outs = compute(product, *arrays)
    return outs, linear(_Tangent(product=product), arrays, perturbed(tangents), outs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tangent:
    """The derivative of a product. `matmul` has one of its own, so this is only that of a derivative."""

    product: Product

    @property
    def effects(self) -> frozenset[Any]:
        return frozenset()

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        fn, at = self._of(residuals, arguments)
        return jax.jvp(fn, at, tuple(argument for argument in arguments if argument is not None))[1]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        fn, at = self._of(residuals, arguments)
        found = iter(jax.vjp(fn, *at)[1](tuple(cotangents)))
        return [None if argument is None else next(found) for argument in arguments]

    def _of(self, arrays: Sequence[Array], wanted: Sequence[Any]) -> tuple[Fn, tuple[Array, ...]]:
        """The product as a function of some of its arrays, and these."""

        def fn(*some: Array) -> tuple[Array, ...]:
            given = iter(some)
            all_of_them = [old if one is None else next(given) for old, one in zip(arrays, wanted, strict=True)]
            return floating(by_xla(self.product, *all_of_them))

        return fn, tuple(array for array, one in zip(arrays, wanted, strict=True) if one is not None)


def _batched(product: Product, *arrays: Array) -> tuple[Array, ...]:
    @custom_vmap
    def call(*arrays: Array) -> tuple[Array, ...]:
        return _dispatched(product, arrays)

    @call.def_vmap
    def _(_size: int, mapped: Sequence[bool], *arrays: Array) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        # One more batch dimension, of length 1 for arrays that are the same for all.
        wider = [array if is_mapped else array[None] for array, is_mapped in zip(arrays, mapped, strict=True)]
        return _batched(product, *wider), (True,) * len(product.dtypes_out)

    return call(*arrays)


def _dispatched(product: Product, arrays: Sequence[Array]) -> tuple[Array, ...]:
    where = product.where
    if where.implementation == "xla" or any(0 in array.shape for array in arrays):
        return by_xla(product, *arrays)
    if is_symbolic(arrays):
        return by_xla(product, _unplanned(where, arrays), *arrays[1:])
    if where.chip is None:
        return by_xla(product, without_kernel(arrays[0], _NO_CHIP), *arrays[1:])
    if where.implementation is None:
        # Decided when the program is lowered: the same traced function may run on a CPU.
        return lax.platform_dependent(
            *arrays, tpu=functools.partial(by_pallas, product), default=functools.partial(by_xla, product)
        )
    return by_pallas(product, *arrays)


def _unplanned(where: Where, arrays: Sequence[Array]) -> Array:
    shapes = " and ".join(f"[{', '.join(map(str, array.shape))}]" for array in arrays[:2])
    if where.implementation is not None:
        raise SpecError(
            f"implementation={where.implementation!r} with operands of {shapes}: tiles are chosen for sizes that are "
            "numbers. Leave it out, and XLA multiplies, or export once for each size"
        )
    return without_kernel(arrays[0], f"tiles are chosen for sizes that are numbers, and operands are {shapes}")
