"""Functions that are linear in some of their arguments, each with a transpose of its own.

`jax.custom_vjp` has no forward mode. A `jax.custom_jvp` has both modes if JAX can transpose its tangent. Here the
tangent is one equation that JAX transposes by a given function, so the backward pass is as free as with `custom_vjp`.
`jax.custom_derivatives.linear_call` is the same idea, but it cannot be batched, nor differentiated with regard to its
other arguments; this can be, any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.extend.core import Primitive, unmapped_aval
from jax.interpreters import ad, batching, mlir


class Linear(Protocol):
    """A function of residuals and arguments, linear in the arguments; a hashable record."""

    @property
    def effects(self) -> frozenset[Any]: ...

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        """Return the floating results. An argument that is None is zero."""
        ...

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        """Return the cotangent of each argument. An argument is None, or has a shape and a dtype if it needs one."""
        ...


def linear(
    fn: Linear, residuals: Sequence[Array], arguments: Sequence[Array | None], primals: Sequence[Array]
) -> tuple[Any, ...]:
    """Return the tangents of a `jax.custom_jvp`'s results: by `fn` for the floating ones, zero for the integers."""
    outs = tuple(jax.typeof(primal) for primal in floating(primals))
    tangents = iter(_bound(fn, residuals, arguments, outs) if outs else ())
    return tuple(
        next(tangents) if floating([primal]) else zero_from_primal(primal, symbolic_zeros=True) for primal in primals
    )


def floating(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Select the arrays that have a derivative: all but the integers."""
    return tuple(array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact))


def perturbed(tangents: Sequence[Any]) -> list[Array | None]:
    """Return the tangents of a rule with `symbolic_zeros`, with None for every zero."""
    return [None if isinstance(tangent, SymbolicZero) else tangent for tangent in tangents]


def jvp_of_moving(fn: Callable[..., Any], arrays: Sequence[Array], changes: Sequence[Array | None]) -> tuple[Any, Any]:
    """Return `fn(*arrays)` and its tangent, differentiating only in arrays whose change is not None, that is zero."""
    moving = [number for number, change in enumerate(changes) if change is not None]

    def of_moving(*values: Array) -> Any:
        moved = dict(zip(moving, values, strict=True))
        return fn(*(moved.get(number, array) for number, array in enumerate(arrays)))

    return jax.jvp(of_moving, [arrays[number] for number in moving], [changes[number] for number in moving])


def _bound(
    fn: Linear, residuals: Sequence[Array], arguments: Sequence[Array | None], outs: tuple[Any, ...]
) -> tuple[Array, ...]:
    present_arguments = [argument for argument in arguments if argument is not None]
    present = tuple(argument is not None for argument in arguments)
    return tuple(_linear.bind(*residuals, *present_arguments, fn=fn, present=present, outs=outs))


def _split(flat: Sequence[Any], present: tuple[bool, ...]) -> tuple[list[Any], list[Any]]:
    """Return residuals, and arguments with None for the absent ones."""
    count = len(flat) - sum(present)
    present_arguments = iter(flat[count:])
    return list(flat[:count]), [next(present_arguments) if is_present else None for is_present in present]


def _forward(*flat: Array, fn: Linear, present: tuple[bool, ...], outs: tuple[Any, ...]) -> list[Array]:
    return list(fn.forward(*_split(flat, present)))


def _tangent(
    primals: Sequence[Array], tangents: Sequence[Any], *, fn: Linear, present: tuple[bool, ...], outs: tuple[Any, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    residuals, arguments = _split(primals, present)
    changes = [None if isinstance(tangent, ad.Zero) else tangent for tangent in tangents]
    residual_tangents, argument_tangents = _split(changes, present)
    terms = []
    if any(change is not None for change in argument_tangents):
        terms.append(_bound(fn, residuals, argument_tangents, outs))
    if any(change is not None for change in residual_tangents):
        terms.append(jvp_of_moving(lambda *moved: fn.forward(moved, arguments), residuals, residual_tangents)[1])
    total = terms[0] if len(terms) == 1 else [term + other_term for term, other_term in zip(*terms, strict=True)]
    return _bound(fn, residuals, arguments, outs), total


def _transposed(
    cotangents: Sequence[Any], *flat: Any, fn: Linear, present: tuple[bool, ...], outs: tuple[Any, ...]
) -> list[Any]:
    residuals, arguments = _split(flat, present)
    avals = [argument.aval if ad.is_undefined_primal(argument) else None for argument in arguments]
    cotangents_in = fn.transpose(residuals, avals, [ad.instantiate_zeros(cotangent) for cotangent in cotangents])
    return [
        *(None for _ in residuals),
        *(cotangent_in for cotangent_in, is_present in zip(cotangents_in, present, strict=True) if is_present),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batched:
    """A function with one more axis on some of its arrays, and as the first axis of all results."""

    fn: Linear
    size: int
    residual_axes: tuple[int | None, ...]
    argument_axes: tuple[int | None, ...]

    @property
    def effects(self) -> frozenset[Any]:
        return self.fn.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        axes = [axis if array is not None else None for array, axis in zip(arguments, self.argument_axes, strict=True)]
        if all(axis is None for axis in (*self.residual_axes, *axes)):
            return [jnp.broadcast_to(out, (self.size, *out.shape)) for out in self.fn.forward(residuals, arguments)]
        return jax.vmap(self.fn.forward, (list(self.residual_axes), axes))(list(residuals), list(arguments))

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        without_batch = [_without(array, axis) for array, axis in zip(arguments, self.argument_axes, strict=True)]

        def transpose(residuals: Sequence[Array], cotangents: Sequence[Array]) -> Sequence[Array | None]:
            return self.fn.transpose(residuals, without_batch, cotangents)

        batched_cotangents = jax.vmap(transpose, (list(self.residual_axes), 0))(list(residuals), list(cotangents))
        # The cotangent of an argument that is the same for the whole batch is a sum over it.
        return [
            array if array is None else array.sum(0) if axis is None else jnp.moveaxis(array, 0, axis)
            for array, axis in zip(batched_cotangents, self.argument_axes, strict=True)
        ]


def _without(array: Any, axis: int | None) -> Any:
    if array is None or axis is None:
        return array
    return jax.ShapeDtypeStruct((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype)


def _over_batch(
    flat: Sequence[Array],
    axes: Sequence[int | None],
    *,
    fn: Linear,
    present: tuple[bool, ...],
    outs: tuple[Any, ...],
) -> tuple[Sequence[Array], Sequence[int]]:
    size = next(array.shape[axis] for array, axis in zip(flat, axes, strict=True) if axis is not None)
    residual_axes, argument_axes = _split(axes, present)
    batched = _Batched(fn=fn, size=size, residual_axes=tuple(residual_axes), argument_axes=tuple(argument_axes))
    results = _bound(batched, *_split(flat, present), tuple(unmapped_aval(size, 0, out) for out in outs))
    return results, [0] * len(results)


_linear = Primitive("systolic_linear")
_linear.multiple_results = True
_linear.def_impl(_forward)
_linear.def_effectful_abstract_eval(lambda *_, fn, present, outs: (list(outs), fn.effects))
ad.primitive_jvps[_linear] = _tangent
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _over_batch
mlir.register_lowering(_linear, mlir.lower_fun(_forward, multiple_results=True))
