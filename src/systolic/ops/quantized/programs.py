"""The programs of products with quantized weights that are built from their specs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import BY_XLA, Backend, Implementation
from systolic.ops.engine.programs import raced_call
from systolic.ops.gated.api import gated_matmul
from systolic.ops.matmul.api import matmul
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.ops.quantized.array import Quantized
from systolic.ops.quantized.pallas import by_pallas
from systolic.ops.quantized.product import Operands, QuantizedProduct, each_weight
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.ops.quantized.xla import ScaledRows, finished, product_of_values, quantized_rows, weight_of
from systolic.schedule import KernelConfig
from systolic.spec import LARGEST

_MANY_ROWS = 512  # whose products take longer than it takes to write the weight once more


def programs_of(spec: QuantizedSpec, chip: Chip) -> Programs:
    shapes = [
        ((spec.m, spec.k), spec.dtype_lhs),
        ((spec.k, spec.n), spec.dtype_rhs),
        ((spec.blocks, spec.n), spec.dtype_scale),
        *([((spec.n,), "float32")] if spec.bias else []),
        *([((spec.m, spec.n), spec.dtype_out)] if spec.residual else []),
        *([((spec.m, spec.lhs_blocks), "float32")] if spec.lhs_blocks else []),
        *([((spec.n,), "float32")] if spec.out_scale else []),
        *([((spec.k, spec.n), spec.dtype_rhs), ((spec.blocks, spec.n), spec.dtype_scale)] if spec.gated else []),
    ]
    return Programs(
        computed=spec,
        arguments=tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes),
        pallas=functools.partial(_product, spec, chip),
        xla=functools.partial(by_xla_in_form, _forms(spec)[0], spec),
    )


def raced(spec: QuantizedSpec, chip: Chip, implementation: Implementation = "pallas") -> RacedPrograms:
    forms = {name: functools.partial(by_xla_in_form, name, spec) for name in _forms(spec)[1:]}
    return raced_call(programs_of(spec, chip), functools.partial(_called, spec, chip, implementation), forms)


def _forms(spec: QuantizedSpec) -> tuple[str, ...]:
    """Return ways to write a product in plain JAX, the usual one first.

    For few rows the weight is dequantized only if XLA may fuse that into the product. A product that reads the
    dequantized weight in bfloat16 takes ten times as long as the others.
    """
    if spec.dtype_rhs not in LARGEST:
        notes = ("values in bfloat16",)
    elif spec.scales_rows:
        notes = ("values",) if spec.sums_integers else ("values", "values in bfloat16")
    else:
        notes = ("mixed",) if spec.blocks == 1 else ("batched",)
    return notes if spec.m < _MANY_ROWS and notes != ("mixed",) else (*notes, "dequantized")


def by_xla_in_form(form: str, spec: QuantizedSpec, *arrays: Array) -> Array:
    """Compute the product as a user would write it in plain JAX.

    Args:
      form: "dequantized", the weight first; "mixed", values cast in the product and the sum scaled, of one scale a
        column; "batched", a product for each block, whose sums are scaled and added. For quantized rows "values" or
        "values in bfloat16": a product of values, or one for each block, whose sums are scaled by both sides.
    """
    operands, product = _operands(spec, arrays), _static(spec)
    rows = quantized_rows(product, operands)
    totals = [_sum_in_form(form, spec, rows, operand_set) for operand_set in each_weight(operands)]
    return finished(product, totals, operands)


def _sum_in_form(form: str, spec: QuantizedSpec, rows: ScaledRows | None, operands: Operands) -> Array:
    if form == "dequantized":
        left = operands.lhs if rows is None else rows.numbers.astype(jnp.bfloat16)
        return jnp.matmul(left, weight_of(operands, left.dtype), preferred_element_type=jnp.float32)
    if rows is not None:
        return product_of_values(rows, operands.values, operands.scales, as_stored=form == "values")
    lhs, scales = operands.lhs, operands.scales.astype(jnp.float32)
    values = operands.values.astype(lhs.dtype)
    if form == "mixed":
        return jnp.matmul(lhs, values, preferred_element_type=jnp.float32) * scales
    products = lax.dot_general(
        lhs.reshape(spec.m, spec.blocks, spec.block),
        values.reshape(spec.blocks, spec.block, spec.n),
        (((2,), (1,)), ((1,), (0,))),
        preferred_element_type=jnp.float32,
    )
    return (products * scales[:, None]).sum(0)


def _static(spec: QuantizedSpec, backend: Backend = BY_XLA) -> QuantizedProduct:
    name, function = activation_of(spec.activation or None)
    return QuantizedProduct(
        backend=backend,
        dtype_out=spec.dtype_out,
        activation=name,
        function=function,
        quantize_lhs=spec.quantize_lhs,
        gated=spec.gated,
    )


def _operands(spec: QuantizedSpec, arrays: tuple[Array, ...]) -> Operands:
    lhs, values, scales, *fused_arrays = arrays
    rest = iter(fused_arrays)
    is_fused = (spec.bias, spec.residual, spec.lhs_blocks, spec.out_scale, spec.gated, spec.gated)
    return Operands(lhs, values, scales, *(next(rest) if is_present else None for is_present in is_fused))


def _product(spec: QuantizedSpec, chip: Chip, config: KernelConfig, *arrays: Array) -> Array:
    backend = Backend(implementation="pallas", chip=chip, tiles=config)
    return by_pallas(_static(spec, backend), _operands(spec, arrays))


def _called(spec: QuantizedSpec, chip: Chip, implementation: Implementation, *arrays: Array) -> Array:
    row_operands = _operands(spec, arrays)
    lhs = row_operands.lhs if row_operands.lhs_scales is None else Quantized(row_operands.lhs, row_operands.lhs_scales)
    weights = [
        Quantized(weight.values, weight.scales) if spec.dtype_rhs in LARGEST else weight.values
        for weight in each_weight(row_operands)
    ]
    fn = functools.partial(
        gated_matmul if spec.gated else matmul,
        activation=spec.activation or None,
        quantize_lhs=spec.quantize_lhs,
        preferred_element_type=spec.dtype_out,
        implementation=implementation,
        chip=chip,
    )
    if spec.gated:
        return fn(lhs, *weights)
    return fn(lhs, *weights, bias=row_operands.bias, residual=row_operands.residual, out_scale=row_operands.out_scale)
