"""Decide whether a function computes each element alone, from its jaxpr.

A kernel applies a function to one block after the other. The result equals the function of the whole array only if no
element depends on another one, on its place, or on the size of the argument. `following.py` follows the values of the
jaxpr; this module gives it the function as called on the whole and on blocks of two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from systolic.ops.functions.captured import with_numbers
from systolic.ops.functions.following import Followed, Follower, NotElementwiseError
from systolic.spec import SpecError

Fn = Callable[..., Any]
_BLOCK = (8, 128)  # elements of a vector register, and so the least block


def elementwise(fn: Fn, what: str, args: Sequence[jax.ShapeDtypeStruct], *, in_kernel: bool) -> Fn:
    """Return `fn` if it makes one array of its first argument's shape, each element from the elements at its place.

    Args:
      what: the name of the argument of `matmul`.
      args: the whole arguments of `fn`. Each dimension of the later ones broadcasts to the first one's.
      in_kernel: True if a kernel will call it. A kernel has no constants, that is, no arrays that `fn` closes over;
        arrays of one element become numbers in the returned function.

    Raises:
      SpecError: `fn` is not elementwise, or it fails.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    seen = _follow(fn, name, what, args)
    # A function that differs for blocks of another size computes with that size.
    steps = [_follow(fn, name, what, _blocks(args, times)).steps for times in (1, 2)]
    if steps[0] != steps[1]:
        raise SpecError(
            f"{what} {name} is not elementwise: it computes with the size of what it is given, which in a kernel is a "
            "block. Use a number"
        )
    if in_kernel and (arrays := [value for value in seen.captured if np.size(value) > 1]):
        raise SpecError(
            f"{what} {name} closes over an array of shape {list(np.shape(arrays[0]))}, and a kernel has no constants; "
            f"use numbers, or {_fix(what)}"
        )
    if seen.has_own_derivative:
        _check_derivative(fn, name, what, _blocks(args, 1))
    return with_numbers(fn) if seen.captured else fn


def _check_derivative(fn: Fn, name: str, what: str, args: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Check a custom derivative; any other derivative of an elementwise function is elementwise."""
    block, *fused = args

    def derivative(block: Any, slope: Any, *fused: Any) -> Any:
        return jax.vjp(lambda elements: fn(elements, *fused), block)[1](slope)[0]

    shapes = [block, jax.eval_shape(fn, *args), *fused]
    try:
        jax.make_jaxpr(derivative)(*shapes)
    except Exception:  # noqa: BLE001  it has no derivative, and JAX reports that when one is used
        return
    _follow(derivative, f"{name}'s derivative", what, shapes)


def _fix(what: str) -> str:
    return "pass arrays as bias, residual or out_scale" if what == "activation" else f"pass arrays in {what[:3]}_args"


def _follow(fn: Fn, name: str, what: str, args: Sequence[jax.ShapeDtypeStruct]) -> Follower:
    try:
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    except Exception as error:
        shapes = ", ".join(f"{arg.dtype.name}{list(arg.shape)}" for arg in args)
        raise SpecError(f"{what} {name} fails on {shapes}: {type(error).__name__}: {error}") from error
    shape = getattr(out, "shape", None)
    if shape != args[0].shape:
        raise SpecError(
            f"{what} {name} turns a block of shape {args[0].shape} into {shape if shape is not None else type(out)}; "
            "it has to be elementwise: one array of the same shape"
        )
    follower = Follower()
    rank = len(args[0].shape)
    inputs = [Followed.block(arg.shape, range(rank - len(arg.shape), rank)) for arg in args]
    try:
        (result,) = follower.follow(closed, inputs)
        result.expect(range(rank))
    except NotElementwiseError as error:
        raise SpecError(
            f"{what} {name} is not elementwise: it {error}. A kernel applies it block by block, so each element has to "
            f"be computed alone. Do that outside of the product, and {_fix(what)}"
        ) from error
    return follower


def _blocks(args: Sequence[jax.ShapeDtypeStruct], times: int) -> list[jax.ShapeDtypeStruct]:
    """Return the arguments as a kernel passes them: matrices, rows, columns and single elements."""
    product = (1, 1, *args[0].shape)[-2:]
    block = tuple(size * times for size in _BLOCK)
    shapes = [jax.ShapeDtypeStruct(block, args[0].dtype)]
    for arg in args[1:]:
        shape = (1, 1, *arg.shape)[-2:]
        sizes = (
            full if size == product_size != 1 else 1
            for full, size, product_size in zip(block, shape, product, strict=True)
        )
        shapes.append(jax.ShapeDtypeStruct(tuple(sizes), arg.dtype))
    return shapes
