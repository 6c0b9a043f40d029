"""Both programs of a case: `systolic.matmul`, and the plain JAX that somebody would write who does not know it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.bench.cases import Case
from systolic.chips import Chip
from systolic.kernels.functions import Functions
from systolic.ops.epilogue import ACTIVATIONS
from systolic.ops.matmul import matmul
from systolic.ops.matmul import product as of_matmul
from systolic.spec import FusedOperand, MatmulSpec, Operands, Prologue

Fn = Callable[..., Array]


def arguments(case: Case) -> Operands:
    """Shapes and dtypes of both programs' one argument; a bias and a scale are [n]."""
    spec = case.spec
    whole = _matrices(spec)

    def vector(shape: jax.ShapeDtypeStruct | None) -> jax.ShapeDtypeStruct | None:
        return None if shape is None else jax.ShapeDtypeStruct((spec.n,), shape.dtype)

    return whole._replace(bias=vector(whole.bias), scale=vector(whole.scale))


def _matrices(spec: MatmulSpec) -> Operands:
    sizes = {"lhs": (spec.m, spec.k), "rhs": (spec.k, spec.n), "out": (spec.m, spec.n)}
    turned = {"lhs": spec.transpose_lhs, "rhs": spec.transpose_rhs, "out": False}

    def shape(operand: FusedOperand, side: str) -> jax.ShapeDtypeStruct:
        rows, columns = sizes[side][:: -1 if turned[side] else 1]
        return jax.ShapeDtypeStruct(
            (rows if operand.rows else 1, columns if operand.columns else 1), jnp.dtype(operand.dtype)
        )

    return spec.operands.map(shape, spec.operands.sides)


def ours(
    case: Case, chip: str | Chip, implementation: Literal["pallas", "xla", "interpret"] = "pallas"
) -> Callable[[Operands], Array]:
    """`systolic.matmul` of a case's operands, with the planner's tiles for a chip."""
    return functools.partial(_ours, case.spec, chip, implementation)


def xla(case: Case) -> Callable[[Operands], Array]:
    """The same as plain JAX operations."""
    return functools.partial(_xla, case.spec)


def _ours(spec: MatmulSpec, chip: str | Chip, implementation: Any, operands: Operands) -> Array:
    functions = _functions(spec)
    return matmul(
        operands.lhs,
        operands.rhs,
        bias=operands.bias,
        activation=spec.epilogue.activation or None,
        residual=operands.residual,
        out_scale=operands.scale,
        transpose_lhs=spec.transpose_lhs,
        transpose_rhs=spec.transpose_rhs,
        lhs_fn=functions.lhs,
        lhs_args=operands.lhs_args,
        rhs_fn=functions.rhs,
        rhs_args=operands.rhs_args,
        precision=spec.precision,
        preferred_element_type=spec.dtype_out,
        implementation=implementation,
        chip=chip,
    )


def _xla(spec: MatmulSpec, operands: Operands) -> Array:
    functions, plain = _functions(spec), spec.epilogue.is_identity
    lhs = functions.lhs(operands.lhs, *operands.lhs_args) if functions.lhs else operands.lhs
    rhs = functions.rhs(operands.rhs, *operands.rhs_args) if functions.rhs else operands.rhs
    accumulator = "int32" if spec.dtype_multiplied == "int8" else "float32"
    out = jnp.matmul(
        lhs.T if spec.transpose_lhs else lhs,
        rhs.T if spec.transpose_rhs else rhs,
        precision=lax.Precision[spec.precision.upper()],
        preferred_element_type=jnp.dtype(spec.dtype_out if plain else accumulator),
    )
    if plain:
        return out
    out = out.astype(jnp.float32)
    if operands.bias is not None:
        out = out + operands.bias.astype(jnp.float32)
    if functions.activation is not None:
        out = functions.activation(out)
    if operands.residual is not None:
        out = out + operands.residual.astype(jnp.float32)
    if operands.scale is not None:
        out = out * operands.scale
    return out.astype(spec.dtype_out)


def _functions(spec: MatmulSpec) -> Functions:
    """What the names in a spec stand for."""
    name = spec.epilogue.activation
    return Functions(
        lhs=_prologue(spec.lhs_prologue),
        rhs=_prologue(spec.rhs_prologue),
        activation=ACTIVATIONS[name] if name else None,
    )


@functools.cache
def _prologue(described: Prologue | None) -> Fn | None:
    if described is None:
        return None
    dtype = described.dtype

    def cast(block: Array) -> Array:
        return block.astype(dtype)

    def mask(block: Array, mask: Array) -> Array:
        return jnp.where(mask != 0, block, jnp.zeros_like(block))

    def norm(block: Array, rows: Array, columns: Array) -> Array:
        return (block.astype(jnp.float32) * rows * columns).astype(dtype)

    def dequantise(block: Array, scale: Array) -> Array:
        return (block.astype(jnp.float32) * scale).astype(dtype)

    return {fn.__name__: fn for fn in (cast, mask, norm, dequantise)}[described.name]


@functools.cache
def spec_of(case: Case) -> MatmulSpec:
    """What `systolic.matmul` plans for a case: its spec, with the operations counted."""
    spec = case.spec
    counted = of_matmul.Product(
        backend=of_matmul.Backend(implementation="xla", chip=None, tiles=None),
        precision=spec.precision,
        dtype_out=spec.dtype_out,
        functions=_functions(spec),
        transpose_lhs=spec.transpose_lhs,
        transpose_rhs=spec.transpose_rhs,
        activation=spec.epilogue.activation,
    )
    return of_matmul.spec_of(counted, _matrices(spec))
