"""Numbers on the chip · How much a product loses by its dtypes, and what it costs to lose less.

    float32     a = a₁ + a₂ + a₃ in bfloat16, of 8 significant bits each; b in the same way
                one pass       a₁b₁                                    the default of a float32 dot
                three passes   a₁b₁ + (a₁b₂ + a₂b₁)
                six passes     a₁b₁ + (a₁b₂ + a₂b₁) + (a₂b₂ + a₁b₃ + a₃b₁)            lax.Precision.HIGHEST
    bfloat16    products are exact in float32; only the sum is rounded, once, or at every step along k
    int8        −128 … 127; sums in int32 are exact as long as they fit

The matrix unit multiplies bfloat16, so it silently rounds float32 operands first. More passes bring back the lost bits,
small terms first, and take as many times as long. In a Pallas kernel there is one pass or six, because
`Precision.HIGH` is not implemented. The kernel here makes three by hand: it splits each block into parts in VMEM.

TPU interpret mode computes a float32 dot in full, so it cannot show the loss. Therefore the kernels that measure the
errors of one pass and of three round the operands themselves: products of bfloat16 are exact in float32, in interpret
mode and on the chip. For six passes there is such a kernel too, next to `HIGHEST`, whose order only the compiler knows.

If a sum is rounded to bfloat16 at each of its steps, each of the last roundings loses up to 2⁻⁹ of it. A sum in float32
is rounded to bfloat16 once. With int8 only the operands are rounded: a scale maps the largest number to 127, so numbers
that are small next to the largest lose most. A sum of k products is at most k·2¹⁴ and fits int32 up to k = 2¹⁷ − 1;
with one more product, the largest sum wraps to the smallest number. A result in int8 saturates (`first_matmul`).

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: a block of lhs, rhs and out, twice each, and the sum once.

This follows the page Pallas TPU, "Writing TPU kernels with Pallas". docs/operation_costs.md has the costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Product = Callable[[Array, Array], Array]
dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)


def split(x: Array, count: int) -> list[Array]:
    """Split x into a sum of `count` terms in bfloat16, the largest first; the remainder is dropped."""
    terms = []
    for _ in range(count):
        terms.append(x.astype(jnp.bfloat16))
        x = x - terms[-1].astype(x.dtype)
    return terms


def one_pass(a: Array, b: Array) -> Array:
    """Multiply as the matrix unit does float32 at default precision."""
    return dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def three_passes(a: Array, b: Array) -> Array:
    """Add all products of terms except of two small terms; small sums first."""
    (a1, a2), (b1, b2) = split(a, 2), split(b, 2)
    return (dot(a1, b2) + dot(a2, b1)) + dot(a1, b1)


def six_passes(a: Array, b: Array) -> Array:
    """Add all products of terms that reach the last bit of float32; small sums first."""
    (a1, a2, a3), (b1, b2, b3) = split(a, 3), split(b, 3)
    smallest = dot(a2, b2) + (dot(a1, b3) + dot(a3, b1))
    return (smallest + (dot(a1, b2) + dot(a2, b1))) + dot(a1, b1)


PRODUCTS: dict[str, Product] = {
    "float32 dot": dot,
    "one pass": one_pass,
    "three passes": three_passes,
    "six passes": six_passes,
    "HIGHEST": functools.partial(dot, precision=lax.Precision.HIGHEST),
}


def passes_kernel(
    lhs_vmem,  # [bm, bk] float32
    rhs_vmem,  # [bk, bn] float32
    out_vmem,  # [bm, bn] float32
    acc_vmem,  # [bm, bn] float32, scratch
    *,
    product: Product,
):
    """Run the body of the ladder's v5 with another product of blocks."""
    kk = pl.program_id(2)

    @pl.when(kk == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    acc_vmem[...] += product(lhs_vmem[...], rhs_vmem[...])

    @pl.when(kk == pl.num_programs(2) - 1)
    def _write():
        out_vmem[...] = acc_vmem[...]


def multiply(
    lhs: Array,
    rhs: Array,
    *,
    product: Product,
    bm: int = 512,
    bk: int = 512,
    bn: int = 512,
    interpret: bool | pltpu.InterpretParams = False,
) -> Array:
    """lhs @ rhs in float32, by `product` of blocks."""
    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        functools.partial(passes_kernel, product=product),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name="passes",
    )(lhs, rhs)
