"""The programs of layers of experts: `systolic.moe` against `jax.lax.ragged_dot` with XLA's sorts and gathers.

XLA's program is given the sizes of groups, which it would have to count: a simulation does not know what a router
sends. With quantized experts that have a scale for each column it has two forms: scales multiply the matrices, or the
rows of the products; and a third, products of codes, with quantized rows. Other scales multiply the matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.moe import moe
from systolic.ops.moe.routing import typical_counts
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.op_programs import RacedPrograms
from systolic.ops.quantized import Quantized, quantize

Form = Literal["scales of sums", "scales of matrices", "quantized rows"]


def raced(spec: MoeSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Return both programs.

    Arguments are x, the router's logits, gate, up and down, their scales if they are quantized, and XLA's sizes of
    groups.
    """
    experts = spec.experts
    x = jax.ShapeDtypeStruct((spec.m, spec.k), jnp.dtype(spec.dtype))
    logits = jax.ShapeDtypeStruct((spec.m, experts), jnp.float32)
    weights = [
        jax.ShapeDtypeStruct((experts, *shape), jnp.dtype(spec.dtype_rhs or spec.dtype)) for shape in spec.matrices
    ]
    scales = [
        jax.ShapeDtypeStruct((experts, rows // (spec.rhs_block or rows), columns // spec.scale_columns), jnp.float32)
        for rows, columns in spec.matrices
    ]
    sizes = typical_counts(spec.m, spec.top_k, experts).sum(0, dtype=np.int32)
    of_columns = spec.rhs_block is None and spec.scale_columns == 1
    names: list[Form] = ["scales of sums", "scales of matrices"] if of_columns else ["scales of matrices"]
    if spec.quantize_lhs and of_columns:
        names.append("quantized rows")
    forms = {name: functools.partial(plain, spec.top_k, name) for name in names}
    xla = forms.pop(names[0])
    return RacedPrograms(
        spec=spec,
        arguments=(x, logits, *weights, *(scales if spec.dtype_rhs else ()), sizes),
        ours=functools.partial(_ours, spec, implementation, chip),
        xla=xla,
        xla_forms=forms if spec.dtype_rhs else {},
    )


def _ours(spec: MoeSpec, implementation: Any, chip: Chip, x: Array, logits: Array, *operands: Array) -> Array:
    *weights, _ = operands
    matrices = [
        Quantized(weights[number], weights[number + 3]) if len(weights) > 3 else weights[number] for number in range(3)
    ]
    options = {"quantize_lhs": spec.quantize_lhs, "implementation": implementation, "chip": chip}
    return moe(x, logits, *matrices, top_k=spec.top_k, **options)


def plain(top_k: int, form: Form, x: Array, logits: Array, *operands: Array) -> Array:
    *weights, sizes = operands
    probabilities, experts = lax.top_k(jax.nn.softmax(logits), top_k)
    probabilities /= probabilities.sum(1, keepdims=True)
    order = jnp.argsort(experts.reshape(-1))
    gate, up, down = (_product(weights, number, sizes, form) for number in range(3))
    rows = x[order // top_k]
    hidden = jax.nn.silu(gate(rows)) * up(rows)
    results = down(hidden)[jnp.argsort(order)].reshape(*probabilities.shape, -1)
    return (results.astype(jnp.float32) * probabilities[..., None]).sum(1).astype(x.dtype)


def _product(weights: Sequence[Array], number: int, sizes: Array, form: Form) -> Any:
    """Return a function of rows: their product with one of the matrices, which may be quantized."""

    def product(rows: Array) -> Array:
        matrices, dtype = weights[number], rows.dtype
        multiply = functools.partial(lax.ragged_dot, rows, group_sizes=sizes)
        if len(weights) == 3:
            return multiply(matrices, preferred_element_type=dtype)
        scales = weights[number + 3]
        if form == "scales of matrices":
            return multiply(Quantized(matrices, scales).dequantize(dtype), preferred_element_type=dtype)
        group = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(rows))
        if form == "quantized rows":
            codes = quantize(rows, matrices.dtype, axis=-1)
            total = lax.ragged_dot(codes.values, matrices, sizes, preferred_element_type=jnp.int32) * codes.scales
        else:
            total = multiply(matrices.astype(dtype), preferred_element_type=jnp.float32)
        return (total * scales[group, 0]).astype(dtype)

    return product
