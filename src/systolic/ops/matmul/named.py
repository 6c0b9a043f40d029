"""Build the product that a spec describes, if all its functions have a name here.

A spec only names its functions. Functions of operands are those that networks commonly use: a cast, a mask, the scales
of rows and columns after a norm, the scale of an int8 weight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.kernels.epilogue import Functions
from systolic.ops.engine.activations import ACTIVATIONS
from systolic.ops.engine.backend import BY_XLA, Backend
from systolic.ops.matmul.product import Product, spec_of
from systolic.spec import FusedOperand, MatmulSpec, Operands, Prologue, Side, SpecError
from systolic.support.choices import unknown_name

Fn = Callable[..., Any]


def product_of(spec: MatmulSpec, backend: Backend) -> Product:
    """Return the product with the functions that a spec names; raise SpecError for other names, or a gradient."""
    if spec.epilogue.primal is not None or spec.epilogue.kept_sum is not None:
        raise SpecError("a product of a gradient is not built from its spec; tune the original product")
    return Product(
        backend=backend,
        precision=spec.precision,
        dtype_out=spec.dtype_out,
        transpose_lhs=spec.transpose_lhs,
        transpose_rhs=spec.transpose_rhs,
        functions=functions_of(spec),
        activation=spec.epilogue.activation,
        pairing=spec.pairing,
        side_by_side=spec.side_by_side,
    )


def functions_of(spec: MatmulSpec) -> Functions:
    """Return the functions that a spec names; raise SpecError for an unknown name."""
    name = spec.epilogue.activation
    if name and name not in ACTIVATIONS:
        raise SpecError(unknown_name("activation=", name, ACTIVATIONS))
    return Functions(
        lhs=_named(spec.lhs_prologue),
        rhs=_named(spec.rhs_prologue),
        activation=ACTIVATIONS[name] if name else None,
    )


def _named(described: Prologue | None) -> Fn | None:
    return described and function_named(described.name, described.dtype)


@functools.cache
def function_named(name: str, dtype: str) -> Fn:
    """Return the operand function of this name, which makes this dtype; raise SpecError if there is none."""

    def cast(block: Array) -> Array:
        return block.astype(dtype)

    def mask(block: Array, mask: Array) -> Array:
        return jnp.where(mask != 0, block, jnp.zeros_like(block))

    def norm(block: Array, rows: Array, columns: Array) -> Array:
        return (block.astype(jnp.float32) * rows * columns).astype(dtype)

    def dequantize(block: Array, scale: Array) -> Array:
        return (block.astype(jnp.float32) * scale).astype(dtype)

    def slopes(block: Array, *slopes: Array) -> tuple[Array, ...]:
        # The gradient of each product of a gated one, from its result's gradient. In bfloat16 the product rounds once.
        return tuple((block * slope).astype(dtype) for slope in slopes)

    by_name: dict[str, Fn] = {fn.__name__: fn for fn in (cast, mask, norm, dequantize, slopes)}
    if name not in by_name:
        raise SpecError(
            f"a spec only names an operand's function: {unknown_name('function', name, by_name)}, or leave it out"
        )
    return by_name[name]


def matrices(spec: MatmulSpec) -> Operands:
    """Return shapes and dtypes of a spec's operands as they are stored, all with the same number of dimensions."""
    sizes = {"lhs": (spec.m, spec.k), "rhs": (spec.k, spec.n), "out": (spec.m, spec.n)}
    turned = {"lhs": spec.transpose_lhs, "rhs": spec.transpose_rhs, "out": False}

    def shape(operand: FusedOperand, side: Side) -> jax.ShapeDtypeStruct:
        rows, columns = sizes[side][:: -1 if turned[side] else 1]
        several = spec.matrices(side) if operand.rows and operand.columns else 1
        lead = (several,) if spec.batch > 1 else ()
        return jax.ShapeDtypeStruct(
            (*lead, rows if operand.rows else 1, columns if operand.columns else 1), jnp.dtype(operand.dtype)
        )

    shapes = spec.operands.map(shape, spec.operands.sides)
    if not spec.side_by_side or shapes.up is None:
        return shapes
    both = jax.ShapeDtypeStruct((*shapes.up.shape[:-1], 2 * shapes.up.shape[-1]), shapes.up.dtype)
    return shapes._replace(rhs=both, up=both)


@functools.lru_cache(maxsize=1024)
def counted(spec: MatmulSpec, product: Product | None = None) -> MatmulSpec:
    """Return the spec with the operations counted in its program; raise SpecError if there is no program here."""
    product = product or product_of(spec, BY_XLA)
    actual_spec = spec_of(product, matrices(spec))
    if _uncounted(actual_spec) != _uncounted(spec):
        raise SpecError(f"this product cannot be built from its spec: {_difference(spec, actual_spec)}")
    return actual_spec


def _uncounted(spec: MatmulSpec) -> MatmulSpec:
    def prologue(function: Prologue | None) -> Prologue | None:
        return function and replace(function, op_count=0)

    return replace(
        spec,
        lhs_prologue=prologue(spec.lhs_prologue),
        rhs_prologue=prologue(spec.rhs_prologue),
        epilogue=replace(spec.epilogue, op_count=0, transcendentals=0),
    )


def _difference(requested: MatmulSpec, made: MatmulSpec) -> str:
    fields: list[tuple[str, Any, Any]] = [
        (name, getattr(_uncounted(made), name), getattr(_uncounted(requested), name))
        for name in MatmulSpec.__dataclass_fields__
    ]
    return "; ".join(
        f"{name} would be {value} and not {expected}" for name, value, expected in fields if value != expected
    )
