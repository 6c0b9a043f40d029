"""The programs of layers of experts: `systolic.moe` against `jax.lax.ragged_dot` with XLA's sorts and gathers.

XLA's program is given the sizes of groups, which it would have to count: a simulation does not know what a router
sends. With quantized experts that have a scale for each column it has two forms: scales multiply the matrices, or the
rows of the products; and a third, products of codes, with quantized rows. Other scales multiply the matrices.

JAX differentiates both. It transposes XLA's gathers to scatters, which add row by row; in a second form their gradients
are gathers too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.bench.moe_layer_spec import LayerSpec
from systolic.bench.moe_programs import GroupedProduct, by_xla
from systolic.chips import Chip
from systolic.ops.moe import moe
from systolic.ops.moe.routing import typical_counts
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.op_programs import RacedPrograms
from systolic.ops.quantized import Quantized, quantize

Form = Literal["scales of sums", "scales of matrices", "quantized rows"]


def raced(spec: LayerSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Return both programs.

    Arguments are x, the router's logits, gate, up and down, their scales if they are quantized, XLA's sizes of groups,
    and in the backward pass the cotangent of the result.
    """
    sizes = typical_counts(spec.m, spec.top_k, spec.experts).sum(0, dtype=np.int32)
    forms: dict[str, Callable[..., Any]] = {form: functools.partial(plain, spec.top_k, form) for form in forms_of(spec)}
    ours, xla = functools.partial(_ours, spec, implementation, chip), forms.pop(forms_of(spec)[0])
    arrays = arrays_of(spec)
    if spec.backward:
        gathers = functools.partial(xla, gathers=True)
        ours, xla, gathers = (functools.partial(with_gradients, layer) for layer in (ours, xla, gathers))
        arguments, forms = (*arrays, sizes, arrays[0]), {"gradients by gathers": gathers}
        return RacedPrograms(spec=spec, arguments=arguments, ours=ours, xla=xla, xla_forms=forms)
    return RacedPrograms(spec=spec, arguments=(*arrays, sizes), ours=ours, xla=xla, xla_forms=forms)


def arrays_of(spec: MoeSpec) -> list[jax.ShapeDtypeStruct]:
    """Return x, the router's logits, gate, up and down, and their scales if they are quantized."""
    weights = [(spec.experts, *shape) for shape in spec.matrices]
    scales = [
        (spec.experts, rows // (spec.rhs_block or rows), columns // spec.scale_columns)
        for rows, columns in spec.matrices
    ]
    return [
        jax.ShapeDtypeStruct((spec.m, spec.k), jnp.dtype(spec.dtype)),
        jax.ShapeDtypeStruct((spec.m, spec.experts), jnp.float32),
        *(jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype_rhs or spec.dtype)) for shape in weights),
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (scales if spec.dtype_rhs else ())),
    ]


def forms_of(spec: MoeSpec) -> list[Form]:
    """Return XLA's forms of the products, of which matrices that are not quantized have one."""
    if spec.dtype_rhs is None:
        return ["scales of sums"]
    if spec.rhs_block is not None or spec.scale_columns > 1:
        return ["scales of matrices"]
    return ["scales of sums", "scales of matrices", *(["quantized rows"] if spec.quantize_lhs else [])]


def experts_of(weights: Sequence[Array]) -> list[Any]:
    """Return gate, up and down as `systolic.moe` takes them, with their scales if there are any."""
    codes, scales = weights[:3], weights[3:]
    return list(map(Quantized, codes, scales)) if scales else list(codes)


def with_gradients(layer: Callable[..., Array], *operands: Array) -> tuple[Array, tuple[Array, ...]]:
    """Return the layer's result, and the gradients of its arrays; operands end with sizes and the cotangent."""
    *arrays, sizes, cotangent = operands
    result, back = jax.vjp(lambda *arrays: layer(*arrays, sizes), *arrays)
    return result, back(cotangent)


def _ours(spec: LayerSpec, implementation: Any, chip: Chip, x: Array, logits: Array, *operands: Array) -> Array:
    *weights, _ = operands
    options = {"quantize_lhs": spec.quantize_lhs, "implementation": implementation, "chip": chip}
    return moe(x, logits, *experts_of(weights), top_k=spec.top_k, **options)


def layer_by(spec: LayerSpec, product: GroupedProduct, *operands: Array) -> Any:
    """Compute the spec with a product of rows in groups, in XLA's faster form around it."""
    layer = functools.partial(plain, spec.top_k, "scales of sums", gathers=spec.backward, multiply=product)
    return with_gradients(layer, *operands) if spec.backward else layer(*operands)


def plain(
    top_k: int,
    form: Form,
    x: Array,
    logits: Array,
    *operands: Array,
    gathers: bool = False,
    multiply: GroupedProduct = by_xla,
) -> Array:
    *weights, sizes = operands
    copies = _gathered_back if gathers else _copies
    probabilities, experts = lax.top_k(jax.nn.softmax(logits), top_k)
    probabilities /= probabilities.sum(1, keepdims=True)
    order = jnp.argsort(experts.reshape(-1))
    gate, up, down = products(weights, sizes, form, multiply)
    place = jnp.argsort(order)
    rows = copies(x, order, place)
    hidden = jax.nn.silu(gate(rows)) * up(rows)
    results = copies(down(hidden), place, order).reshape(*probabilities.shape, -1)
    return (results.astype(jnp.float32) * probabilities[..., None]).sum(1).astype(x.dtype)


def _copies(rows: Array, order: Array, place: Array) -> Array:
    """Return as many copies of each row, in this order, the inverse of `place`."""
    return rows[order // (len(order) // len(rows))]


@jax.custom_vjp
def _gathered_back(rows: Array, order: Array, place: Array) -> Array:
    """Return `_copies`, whose gradient is a gather too."""
    return _copies(rows, order, place)


def _copies_and_places(rows: Array, order: Array, place: Array) -> tuple[Array, tuple[Array, Array]]:
    return _copies(rows, order, place), (place, rows[:, :0])


def _sums_of_copies(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, None, None]:
    place, like = residuals
    total = cotangent[place].reshape(len(like), -1, cotangent.shape[1]).sum(1, dtype=jnp.float32)
    return total.astype(cotangent.dtype), None, None


_gathered_back.defvjp(_copies_and_places, _sums_of_copies)


def products(weights: Sequence[Array], sizes: Array, form: Form, of_floats: GroupedProduct = by_xla) -> Any:
    """Return functions of rows: their products with gate, up and down, which may be quantized."""
    return [_product(weights, number, sizes, form, of_floats) for number in range(3)]


def _product(weights: Sequence[Array], number: int, sizes: Array, form: Form, of_floats: GroupedProduct) -> Any:

    def product(rows: Array) -> Array:
        matrices, dtype = weights[number], rows.dtype
        if len(weights) == 3:
            return of_floats(rows, matrices, sizes)
        multiply = functools.partial(lax.ragged_dot, rows, group_sizes=sizes)
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
