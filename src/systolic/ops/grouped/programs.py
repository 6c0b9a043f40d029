"""The programs of grouped products that are built from their specs, with the group sizes that tiles are chosen for."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend, Implementation
from systolic.ops.engine.programs import call_options, raced_call, raced_kernel
from systolic.ops.grouped.api import grouped_matmul
from systolic.ops.grouped.codes import in_floats, sides_of
from systolic.ops.grouped.cost import typical_sizes
from systolic.ops.grouped.pallas import gradient_by_pallas, product_by_pallas
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.ops.grouped.xla import ROWS_SUMMED
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.ops.quantized.array import Quantized
from systolic.schedule import KernelConfig
from systolic.spec import accumulator_dtype


def programs_of(spec: GroupedSpec, chip: Chip) -> Programs:
    """Return the programs of a product. The last argument is the group sizes, which a simulation has to know."""
    dtype = jnp.dtype(spec.dtype)
    n = 2 * spec.n if spec.side_by_side else spec.n
    shape = (spec.groups, *((n, spec.k) if spec.transpose_rhs else (spec.k, n)))
    matrices = jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype_rhs or spec.dtype))
    arguments: list[Any] = [jax.ShapeDtypeStruct((spec.m, spec.k), dtype), matrices]
    if spec.gated and not spec.side_by_side:
        arguments.append(matrices)
    if spec.bias:
        arguments.append(jax.ShapeDtypeStruct((spec.groups, spec.n), jnp.float32))
    if spec.row_scale:
        arguments.append(jax.ShapeDtypeStruct((spec.m,), jnp.float32))
    if spec.residual:
        arguments.append(jax.ShapeDtypeStruct((spec.m, spec.n), jnp.dtype(spec.residual)))
    if spec.existing_out:
        arguments.append(jax.ShapeDtypeStruct((spec.m, spec.n), jnp.dtype(spec.dtype_out)))
    if spec.dtype_rhs:
        shape = (spec.groups, spec.products * spec.scale_blocks, spec.n // spec.scale_columns)
        arguments.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    if spec.lhs_scale:
        arguments.append(jax.ShapeDtypeStruct((spec.m,), jnp.float32))
    return Programs(
        computed=spec,
        arguments=(*arguments, _sizes(spec)),
        pallas=functools.partial(_product, spec, chip),
        xla=functools.partial(_plain, spec),
    )


def gradient_programs_of(spec: GroupedGradientSpec, chip: Chip) -> Programs:
    """Return the programs of a gradient: of the rows of both operands, and the group sizes."""
    rows = (jax.ShapeDtypeStruct((spec.m, size), jnp.dtype(spec.dtype)) for size in (spec.k, spec.n))
    return Programs(
        computed=spec,
        arguments=(*rows, _sizes(spec)),
        pallas=functools.partial(_gradient, spec, chip),
        xla=functools.partial(_plain_gradient, spec),
    )


def raced(spec: GroupedSpec, chip: Chip, implementation: Implementation = "pallas") -> RacedPrograms:
    programs = programs_of(spec, chip)
    if spec.lhs_scale:  # a call takes rows of floats
        return raced_kernel(programs, spec, chip)
    return raced_call(programs, functools.partial(_called, spec, chip, implementation))


def gradient_raced(spec: GroupedGradientSpec, chip: Chip) -> RacedPrograms:
    """Return the kernel that the backward pass calls, and XLA's."""
    return raced_kernel(gradient_programs_of(spec, chip), spec, chip)


def _sizes(spec: GroupedSpec | GroupedGradientSpec) -> np.ndarray:
    return np.array(typical_sizes(spec.groups, spec.m, spec.rows_per_group), np.int32)


def _static(spec: GroupedSpec | GroupedGradientSpec, chip: Chip, config: KernelConfig) -> GroupedProduct:
    return GroupedProduct(
        backend=Backend(implementation="pallas", chip=chip, tiles=config),
        precision=spec.precision,
        dtype_out=spec.dtype_out,
        rows_per_group=spec.rows_per_group,
    )


def _product(spec: GroupedSpec, chip: Chip, config: KernelConfig, *arrays: Array) -> Array:
    name, function = activation_of(spec.activation or None)
    product = replace(
        _static(spec, chip, config),
        transpose_rhs=spec.transpose_rhs,
        side_by_side=spec.side_by_side,
        activation=name,
        function=function,
    )
    lhs, rhs, *fused_arrays, sizes = arrays
    return product_by_pallas(product, lhs, rhs, Grouping(sizes), _fused(spec, fused_arrays))


def _fused(spec: GroupedSpec, fused_arrays: list[Array]) -> Fused:
    rest = iter(fused_arrays)
    up = next(rest) if spec.gated and not spec.side_by_side else None
    is_fused = (spec.bias, spec.row_scale, spec.residual, spec.existing_out, bool(spec.dtype_rhs), spec.lhs_scale)
    arrays = (next(rest) if is_there else None for is_there in is_fused)
    bias, row_scale, residual, existing, rhs_scale, lhs_scale = arrays
    return Fused(bias, row_scale, up, residual, existing, rhs_scale, lhs_scale)


def _quantized(spec: GroupedSpec, rhs: Array, fused: Fused) -> tuple[Any, dict[str, Any]]:
    """Return rhs and the fused arrays as `grouped_matmul` takes them."""
    arrays = fused._asdict()
    del arrays["lhs_scale"]
    scale = arrays.pop("rhs_scale")
    if scale is None:
        return rhs, arrays

    def side(codes: Array, scale: Array) -> Quantized:
        return Quantized(codes, jnp.moveaxis(scale, 1, 2 if spec.transpose_rhs else 1))

    gate, up_scale = sides_of(scale, spec.products)
    if spec.side_by_side:
        return side(rhs, jnp.concatenate([gate, up_scale], axis=2)), arrays
    up = None if fused.up is None else side(fused.up, up_scale)
    return side(rhs, gate), {**arrays, "up": up}


def _called(spec: GroupedSpec, chip: Chip, implementation: Implementation, *arrays: Array) -> Array:
    lhs, rhs, *fused_arrays, sizes = arrays
    sides, fused = _quantized(spec, rhs, _fused(spec, fused_arrays))
    return grouped_matmul(
        lhs,
        sides,
        sizes,
        **fused,
        side_by_side=spec.side_by_side,
        activation=spec.activation or None,
        transpose_rhs=spec.transpose_rhs,
        rows_per_group=spec.rows_per_group,
        **call_options(spec, chip, implementation),
    )


def _plain(spec: GroupedSpec, *arrays: Array) -> Array:
    """Compute the product in plain JAX; all rows belong to some group."""
    lhs, rhs, *fused_arrays, sizes = arrays
    fused = _fused(spec, fused_arrays)
    if fused.lhs_scale is not None:
        lhs = (lhs.astype(jnp.float32) * fused.lhs_scale[:, None]).astype(jnp.bfloat16)
    if spec.dtype_rhs:
        rhs, fused = in_floats(spec, lhs, rhs, fused)
    _, function = activation_of(spec.activation or None)
    is_plain = not (spec.bias or spec.row_scale or function or spec.gated or spec.residual)

    def product(matrices: Array) -> Array:
        return lax.ragged_dot(
            lhs,
            matrices.swapaxes(1, 2) if spec.transpose_rhs else matrices,
            sizes,
            precision=lax.Precision[spec.precision.upper()],
            preferred_element_type=jnp.dtype(spec.dtype_out if is_plain else accumulator_dtype(lhs.dtype.name)),
        )

    out, *up = jnp.split(product(rhs), 2, axis=1) if spec.side_by_side else [product(rhs)]
    if fused.up is not None:
        up = [product(fused.up)]
    if fused.bias is not None:
        out = out + fused.bias[jnp.repeat(jnp.arange(spec.groups), sizes, total_repeat_length=spec.m)]
    if function is not None:
        out = function(out.astype(jnp.float32))
    if up:
        out = out.astype(jnp.float32) * up[0].astype(jnp.float32)
    if fused.row_scale is not None:
        out = out * fused.row_scale[:, None]
    if fused.residual is not None:
        out = out.astype(jnp.float32) + fused.residual.astype(jnp.float32)
    return out.astype(spec.dtype_out)


def _gradient(
    spec: GroupedGradientSpec, chip: Chip, config: KernelConfig, lhs: Array, cotangent: Array, sizes: Array
) -> Array:
    return gradient_by_pallas(_static(spec, chip, config), spec.groups, lhs, cotangent, Grouping(sizes))


def _plain_gradient(spec: GroupedGradientSpec, lhs: Array, cotangent: Array, sizes: Array) -> Array:
    return lax.ragged_dot_general(
        lhs,
        cotangent,
        sizes,
        ROWS_SUMMED,
        precision=lax.Precision[spec.precision.upper()],
        preferred_element_type=jnp.dtype(spec.dtype_out),
    )
