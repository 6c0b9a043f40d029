"""An operand of one step: multiplied as it is stored, made on the way, or rewritten in VMEM before the products.

A value that is made on the way (a cast, a function, the halves of a float32) is computed again for each subtile, from
the part of the block that the subtile multiplies: the vector unit does it while the matrix units work. Rewriting the
block first does not overlap with the products, so it pays only for expensive functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.epilogue import Fn
from systolic.kernels.subtiles import Subtile, loop, times
from systolic.schedule import LANES, KernelConfig, is_made, is_split, is_staged, sublane_multiple
from systolic.spec import FusedOperand, MatmulSpec, Operands

_STAGED_ROWS = 256  # rows of an operand that are rewritten at once
# The largest bfloat16 below 2^120. A low part that is rounded to 2^120 would make float32's largest number infinite.
_LARGEST_LOW = 2.0**120 - 2.0**112


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A block of an operand in VMEM, in the form that the matrix units take."""

    refs: tuple[Any, ...]  # one ref; the high and low halves of a staged float32; or two right-hand sides
    make: Callable[..., tuple[Array, ...]] | None = None  # takes the blocks of `refs` and of `args`; None: as stored
    args: tuple[tuple[FusedOperand, Any], ...] = ()  # fused operands that `make` reads, with their refs

    def values(self, rows: Any, columns: Any) -> tuple[Array, ...]:
        """Return the factors of these rows and columns: of each right-hand side one array, or its high and low half."""
        blocks = tuple(ref[rows, columns] for ref in self.refs)
        if self.make is None:
            return blocks
        read = [ref[part_of(facts, rows, columns)] for facts, ref in self.args]
        return self.make(*blocks, *read)

    def part(self, rows: Any, columns: Any) -> Operand:
        return replace(
            self,
            refs=tuple(ref.at[rows, columns] for ref in self.refs),
            args=tuple((facts, ref.at[part_of(facts, rows, columns)]) for facts, ref in self.args),
        )


def part_of(facts: FusedOperand, rows: Any, columns: Any) -> tuple[Any, Any]:
    """Return the part of a fused operand's block that belongs to these rows and columns of the matrix it applies to."""
    return (rows if facts.rows else slice(None)), (columns if facts.columns else slice(None))


def ready(
    side: Literal["lhs", "rhs"],
    refs: Operands,
    fn: Fn | None,
    scratch: tuple[Any, ...],
    kk: Any,
    spec: MatmulSpec,
    config: KernelConfig,
) -> Operand:
    """Return an operand of the step, zero past the end of k; `scratch` holds the block of a staged operand."""
    transposed = spec.transpose_lhs if side == "lhs" else spec.transpose_rhs
    axis_k = (1 if side == "lhs" else 0) ^ transposed
    stored = tuple(refs.factors[:1] if side == "lhs" else refs.factors[1:])
    operand = Operand(refs=stored)
    if is_made(spec, side):
        make = split if is_split(spec) else _cast_to(spec.dtype_multiplied)
        args = tuple(zip(spec.operands.args(side), refs.args(side), strict=True))

        def each(*read: Array) -> tuple[Array, ...]:
            values = read if fn is None else fn(*read)
            return tuple(part for value in jax.tree.leaves(values) for part in make(value))

        remade = Operand(refs=stored, make=each, args=args)
        operand = _staged(remade, scratch) if is_staged(spec, config.tiles, side) else remade
    used_depth = spec.k % config.tiles.tile_k
    if used_depth:

        @pl.when(kk == config.tiles.grid(spec)[2] - 1)
        def _zero() -> None:
            for block in operand.refs:
                _zero_past(block, used_depth, axis_k)

    return operand


def _staged(made: Operand, refs: tuple[Any, ...]) -> Operand:
    rows = refs[0].shape[0]

    def rewrite(at: Any) -> None:
        for ref, value in zip(refs, made.values(at, slice(None)), strict=True):
            ref[at, :] = value

    with jax.named_scope("stage"):
        if rows >= _STAGED_ROWS:
            loop(rows // _STAGED_ROWS, lambda number: rewrite(pl.ds(times(number, _STAGED_ROWS), _STAGED_ROWS)))
        if rows % _STAGED_ROWS:
            rewrite(pl.ds(rows // _STAGED_ROWS * _STAGED_ROWS, rows % _STAGED_ROWS))
    return Operand(refs=refs)


def multiply(lhs: Operand, rhs: Operand, subtile: Subtile, spec: MatmulSpec) -> tuple[Array, ...]:
    """Return a subtile's contribution to its sums, in the accumulator's dtype.

    If each factor has two parts, there are three products, the small ones first.
    """
    dimensions = (((0 if spec.transpose_lhs else 1,), (1 if spec.transpose_rhs else 0,)), ((), ()))
    exact = spec.precision == "highest" and spec.dtype_multiplied == "float32"

    # All of k, and the rows or columns of the subtile.
    lhs_values = lhs.values(*((slice(None), subtile.rows) if spec.transpose_lhs else (subtile.rows, slice(None))))
    rhs_values = rhs.values(*((subtile.columns, slice(None)) if spec.transpose_rhs else (slice(None), subtile.columns)))

    def dot(left: Array, right: Array) -> Array:
        return lax.dot_general(
            left,
            right,
            dimensions,
            precision=lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT,
            preferred_element_type=jnp.dtype(spec.dtype_dot),
        ).astype(spec.dtype_accumulator)

    def product(left: tuple[Array, ...], right: tuple[Array, ...]) -> Array:
        if len(left) == 1:
            return dot(*left, *right)
        return of_halves(dot, left, right)

    parts = 2 if is_split(spec) else 1
    lefts, rights = (list(zip(*[iter(values)] * parts, strict=True)) for values in (lhs_values, rhs_values))
    products = [product(left, right) for left, right in zip(lefts * (spec.products // len(lefts)), rights, strict=True)]
    return (products[0] + products[1],) if spec.pairing == "added" else tuple(products)


def of_halves(dot: Callable[[Array, Array], Array], lhs: tuple[Array, ...], rhs: tuple[Array, ...]) -> Array:
    """Return three products of the high and low halves of each factor, as `split` makes them; the small ones first."""
    (lhs_high, lhs_low), (rhs_high, rhs_low) = lhs, rhs
    small = dot(lhs_low, rhs_high) + dot(lhs_high, rhs_low)
    # An infinite element has no low part, so the small products are NaN (∞ − ∞ and ∞ · 0). The high product is right.
    return jnp.where(small == small, small, 0.0) + dot(lhs_high, rhs_high)


def split(block: Array) -> tuple[Array, Array]:
    """Split a float32 block into two bfloat16 blocks whose sum is within 2^-16 of it.

    The high part is truncated by a mask on the bits, which no compiler mistakes for a cast that it may skip. The
    low part of an infinite element or a NaN is NaN. The high part of a NaN is NaN if one of its upper bits is set, as
    in every NaN that arithmetic makes.
    """
    block = block.astype(jnp.float32)
    bits = lax.bitcast_convert_type(block, jnp.uint32)
    high = lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    low = jnp.clip(block - high, -_LARGEST_LOW, _LARGEST_LOW)
    return high.astype(jnp.bfloat16), low.astype(jnp.bfloat16)


def _cast_to(name: str) -> Callable[[Array], tuple[Array]]:
    dtype = jnp.dtype(name)

    def cast(block: Array) -> tuple[Array]:
        if jnp.issubdtype(block.dtype, jnp.integer) and dtype == jnp.bfloat16:
            return (block.astype(jnp.float32).astype(dtype),)  # Mosaic has no direct cast on every chip
        return (block.astype(dtype),)

    return cast


def _zero_past(ref: Any, used: int, axis: int) -> None:
    """Zero a block from row or column `used` on.

    Whole registers are overwritten; the register in which the matrix ends is read, masked and written back.
    """
    size = ref.shape[axis]
    step = LANES if axis == 1 else max(16, sublane_multiple(ref.dtype.name))
    start, end = used // step * step, min(-(-used // step) * step, size)

    def at(low: int, high: int) -> tuple[slice, slice]:
        return (slice(low, high), slice(None)) if axis == 0 else (slice(None), slice(low, high))

    if used % step:
        edge = ref[at(start, end)]
        number = lax.broadcasted_iota(jnp.int32, edge.shape, axis)
        ref[at(start, end)] = jnp.where(number < used - start, edge, jnp.zeros_like(edge))
    if end < size:
        rest = at(end, size)
        shape = (size - end, ref.shape[1]) if axis == 0 else (ref.shape[0], size - end)
        ref[rest] = jnp.zeros(shape, ref.dtype)
