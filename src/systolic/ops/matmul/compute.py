"""Compute one product, by Pallas or by XLA, for any number of batch dimensions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import Array
from jax.custom_batching import custom_vmap

from systolic.ops.engine.backend import Backend
from systolic.ops.engine.linear import floating, linear, perturbed
from systolic.ops.engine.shapes import is_symbolic
from systolic.ops.engine.target import NO_CHIP, explicit_mesh, kernel_or_xla, without_kernel
from systolic.ops.matmul.pallas import by_pallas
from systolic.ops.matmul.product import Product
from systolic.ops.matmul.sharded import sharded
from systolic.ops.matmul.xla import by_xla
from systolic.spec import Operands, SpecError

Fn = Callable[..., Any]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def compute(product: Product, operands: Operands) -> tuple[Array, ...]:
    """Return all outputs, each [*batch, m, n]; differentiable in both modes, any number of times, by XLA."""
    return _batched(product, operands)


@functools.partial(compute.defjvp, symbolic_zeros=True)
def _compute_tangent(
    product: Product, primals: tuple[Operands], tangents: tuple[Operands]
) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
    outs = compute(product, *primals)
    leaves, structure = jax.tree.flatten(primals[0])
    return outs, linear(
        _Tangent(product=product, structure=structure), leaves, perturbed(jax.tree.leaves(tangents[0])), outs
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tangent:
    """The derivative of a product in `matmul`'s derivative; `matmul` itself has its own."""

    product: Product
    structure: Any  # of its operands
    effects: frozenset[Any] = frozenset()  # none: XLA computes it

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        fn, at = self._of(residuals, arguments)
        return jax.jvp(fn, at, tuple(argument for argument in arguments if argument is not None))[1]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        fn, at = self._of(residuals, arguments)
        cotangents_in = iter(jax.vjp(fn, *at)[1](tuple(cotangents)))
        return [None if argument is None else next(cotangents_in) for argument in arguments]

    def _of(self, arrays: Sequence[Array], arguments: Sequence[Any]) -> tuple[Fn, tuple[Array, ...]]:
        """Return the product as a function of some of its arrays, and these arrays."""

        def fn(*primals: Array) -> tuple[Array, ...]:
            values = iter(primals)
            all_of_them = [
                old if is_given is None else next(values) for old, is_given in zip(arrays, arguments, strict=True)
            ]
            return floating(by_xla(self.product, self.structure.unflatten(all_of_them)))

        return fn, tuple(array for array, is_given in zip(arrays, arguments, strict=True) if is_given is not None)


def _batched(product: Product, operands: Operands) -> tuple[Array, ...]:
    @custom_vmap
    def call(operands: Operands) -> tuple[Array, ...]:
        return _dispatched(product, operands)

    @call.def_vmap
    def _(_size: int, mapped: Sequence[Operands], operands: Operands) -> tuple[tuple[Array, ...], Any]:
        # One more batch dimension, of length 1 for arrays that are the same for all.
        wider = operands.map(lambda array, is_mapped: array if is_mapped else array[None], mapped[0])
        outs = _batched(product, wider)
        return outs, (True,) * len(outs)

    return call(operands)


def _dispatched(product: Product, operands: Operands) -> tuple[Array, ...]:
    if product.keeps_lhs and operands.lhs.ndim > 2:  # under `vmap` nothing is gathered
        return (*_dispatched(replace(product, keeps_lhs=False), operands), operands.lhs)
    mesh = explicit_mesh(operands.present())
    if mesh is not None:
        return sharded(_dispatched, mesh, product, operands)
    backend = product.backend
    if backend.implementation == "xla" or any(0 in array.shape for array in operands.present()):
        return by_xla(product, operands)
    if is_symbolic(operands):
        return by_xla(product, operands._replace(lhs=_unplanned(backend, operands)))
    if backend.chip is None:
        return by_xla(product, operands._replace(lhs=without_kernel(operands.lhs, NO_CHIP)))
    if backend.implementation is None:
        return kernel_or_xla(functools.partial(by_pallas, product), functools.partial(by_xla, product), operands)
    return by_pallas(product, operands)


def _unplanned(backend: Backend, operands: Operands) -> Array:
    shapes = " and ".join(f"[{', '.join(map(str, array.shape))}]" for array in (operands.lhs, operands.rhs))
    if backend.implementation is not None:
        raise SpecError(
            f"implementation={backend.implementation!r} with operands of {shapes}: tiles are chosen for sizes that are "
            "numbers. Leave it out, and XLA multiplies, or export once for each size"
        )
    return without_kernel(operands.lhs, f"tiles are chosen for sizes that are numbers, and operands are {shapes}")
