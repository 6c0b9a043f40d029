"""The programs of a product that are built from its spec.

`tune` compares its kernel in any configuration with XLA's; `bench` compares `systolic.matmul` with the plain JAX of a
user without systolic.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.engine.backend import Backend, Implementation
from systolic.ops.engine.programs import call_options
from systolic.ops.engine.shapes import fold
from systolic.ops.matmul.api import matmul
from systolic.ops.matmul.named import counted, functions_of, matrices, product_of
from systolic.ops.matmul.orientation import Orientation
from systolic.ops.matmul.pallas import by_pallas
from systolic.ops.matmul.product import Product, spec_of
from systolic.ops.matmul.xla import by_xla
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.schedule import KernelConfig
from systolic.spec import MatmulSpec, Operands


def programs_of(spec: MatmulSpec, chip: Chip) -> Programs:
    """Return the programs of a product with the functions that the spec names.

    The kernel's product has the batch folded into the rows, and operands turned, as in `systolic.matmul`.

    Raises:
      SpecError: a function without a name of systolic's, or a product of a gradient.
    """
    product = product_of(spec, Backend(implementation="pallas", chip=chip, tiles=None))
    operands = matrices(counted(spec, product))
    folded, _ = jax.eval_shape(lambda operands: fold(product.transpose_lhs, operands), operands)
    planned = spec_of(product, folded)
    return Programs(
        computed=Orientation.of(planned).spec(planned),
        arguments=(operands,),
        pallas=functools.partial(_product, product),
        xla=functools.partial(_result, by_xla, product),
    )


def _product(product: Product, config: KernelConfig, operands: Operands) -> Any:
    backend = dataclasses.replace(product.backend, tiles=config)
    return _result(by_pallas, dataclasses.replace(product, backend=backend), operands)


def _result(run: Callable[..., tuple[Any, ...]], product: Product, operands: Operands) -> Any:
    outs = run(product, operands)
    return outs[0] if len(outs) == 1 else outs


def raced(spec: MatmulSpec, chip: Chip, implementation: Implementation = "pallas") -> RacedPrograms:
    """Return `systolic.matmul` and plain JAX; ours takes the tiles of the planner in use when it is traced."""
    counted_programs = counted(spec)
    return RacedPrograms(
        spec=counted_programs,
        arguments=(_as_written(counted_programs),),
        ours=functools.partial(_called, counted_programs, chip, implementation),
        xla=functools.partial(_plain, counted_programs),
    )


def _as_written(spec: MatmulSpec) -> Operands:
    """Return the operands as a network has them: a row that is fused into the output is a vector."""
    arrays = matrices(spec)

    def vector(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return shape if shape.shape[-2] > 1 else jax.ShapeDtypeStruct(shape.shape[-1:], shape.dtype)

    rows = arrays.of_output.map(vector)
    return arrays._replace(bias=rows.bias, scale=rows.scale)


def _called(spec: MatmulSpec, chip: Chip, implementation: Implementation, operands: Operands) -> Array:
    functions = functions_of(spec)
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
        **call_options(spec, chip, implementation),
    )


def _plain(spec: MatmulSpec, operands: Operands) -> Array:
    functions, plain = functions_of(spec), spec.epilogue.is_identity
    lhs = functions.lhs(operands.lhs, *operands.lhs_args) if functions.lhs else operands.lhs
    rhs = functions.rhs(operands.rhs, *operands.rhs_args) if functions.rhs else operands.rhs
    accumulator = "int32" if spec.dtype_multiplied == "int8" else "float32"
    out = jnp.matmul(
        lhs.mT if spec.transpose_lhs else lhs,
        rhs.mT if spec.transpose_rhs else rhs,
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
