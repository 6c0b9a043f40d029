"""One product with everything that is fused into it: its static parameters, and its spec for some operands.

    sum = f(lhs) @ g(rhs)          z = sum + bias          out = (activation(z) + residual) · scale

All operands of a product have the same number of dimensions: the batch's, each of the batch's length or 1, then two of
a matrix, or of a row, a column, or one element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from systolic.kernels.epilogue import Functions, outputs
from systolic.ops.engine.activations import OpCount, op_count_of
from systolic.ops.engine.backend import Computed
from systolic.ops.engine.cuts import Axes
from systolic.ops.engine.shapes import broadcast_shapes
from systolic.ops.gated.spec import GatedSpec
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Operands, Pairing, PrecisionName, Prologue, Side

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Computed):
    """All static parameters of a product except its operands' shapes; hashable."""

    precision: PrecisionName
    dtype_out: str
    functions: Functions
    transpose_lhs: bool = False
    transpose_rhs: bool = False
    activation: str = ""  # its name
    kept_sum: str | None = None  # dtype of a second output, z; None: there is none
    pairing: Pairing | None = None  # the combination of two products; None if there is one
    side_by_side: bool = False  # both right-hand sides are one array; of `apart` both outputs
    # Axes of the mesh that are to cut each dimension of the result; None: as the operands say.
    out_cut: tuple[Axes, ...] | None = None
    keeps_lhs: bool = False  # lhs, which a kernel gathers over an axis of the mesh, is the last output too


def spec_of(product: Product, operands: Operands) -> MatmulSpec:
    """Return the spec of a product of these arrays, or shapes, for the planner."""
    lhs, rhs = operands.lhs, operands.rhs
    m, k = lhs.shape[-2:][:: -1 if product.transpose_lhs else 1]
    n = rhs.shape[-2 if product.transpose_rhs else -1]
    if product.pairing == "gated" and product.side_by_side:
        n //= 2
    batch = math.prod(max(sizes) for sizes in zip(*(array.shape[:-2] for array in operands.present()), strict=True))

    def fused(array: Any, side: Side) -> FusedOperand:
        rows, columns = {"lhs": lhs.shape[-2:], "rhs": rhs.shape[-2:], "out": (m, n)}[side]
        return FusedOperand(
            rows=array.shape[-2] == rows and rows > 1,
            columns=array.shape[-1] == columns and columns > 1,
            dtype=array.dtype.name,
        )

    facts = operands.map(fused, operands.sides)
    counted = _counted(product, operands.of_output.map(lambda _: True))
    spec_type: Callable[..., MatmulSpec] = MatmulSpec
    if product.pairing is not None:
        spec_type = functools.partial(GatedSpec, pairing=product.pairing, side_by_side=product.side_by_side)
    return spec_type(
        m=max(m, 1),
        k=max(k, 1),
        n=max(n, 1),
        dtype_lhs=lhs.dtype.name,
        dtype_rhs=rhs.dtype.name,
        dtype_out=product.dtype_out,
        batch=max(batch, 1),
        batch_lhs=max(math.prod(lhs.shape[:-2]), 1),
        batch_rhs=max(math.prod(rhs.shape[:-2]), 1),
        transpose_lhs=product.transpose_lhs,
        transpose_rhs=product.transpose_rhs,
        precision=product.precision,
        lhs_prologue=_prologue(product.functions.lhs, (lhs, *operands.lhs_args), facts.lhs_args),
        rhs_prologue=_prologue(product.functions.rhs, (rhs, *operands.rhs_args), facts.rhs_args),
        epilogue=Epilogue(
            bias=facts.bias,
            activation=product.activation,
            residual=facts.residual,
            scale=facts.scale,
            primal=facts.primal,
            kept_sum=product.kept_sum,
            op_count=counted.total,
            transcendentals=counted.transcendentals,
        ),
    )


def _prologue(fn: Fn | None, arrays: tuple[Any, ...], args: tuple[FusedOperand, ...]) -> Prologue | None:
    if fn is None:
        return None
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    return Prologue(
        name=getattr(fn, "__name__", type(fn).__name__),
        dtype=jax.tree.leaves(jax.eval_shape(fn, *shapes))[0].dtype.name,
        op_count=op_count_of(fn, *shapes).total,
        operands=args,
    )


@functools.lru_cache(maxsize=1024)
def _counted(product: Product, has_operands: Operands) -> OpCount:
    """Return the operations for each element of the epilogue of a product with these operands; 0 for a cast alone."""
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    fact = FusedOperand(rows=True, columns=True, dtype="float32")
    facts: dict[str, Any] = {name: fact for name, is_given in has_operands._asdict().items() if is_given}
    epilogue = Epilogue(**facts, activation=product.activation, kept_sum=product.kept_sum)
    if epilogue.is_identity and product.pairing != "gated":
        return OpCount(total=0, transcendentals=0)
    sums = 1 if product.pairing in (None, "added") else 2

    def finish(total: Any, *arrays: Any) -> Any:
        operands = Operands(**dict(zip(facts, arrays, strict=True)))
        totals = (total,) * sums
        return outputs(totals, operands, epilogue, product.functions, product.dtype_out, product.pairing)

    return op_count_of(finish, tile, *(tile for _ in facts))


def kept_dtype(operands: Operands) -> str:
    """Return the dtype of the sum kept for the backward pass: the operands', as a network keeps its activations."""
    return "float32" if "float32" in (operands.lhs.dtype.name, operands.rhs.dtype.name) else "bfloat16"


def output_shape(product: Product, operands: Operands) -> tuple[int, ...]:
    """Return the shape [*batch, m, n]."""
    lhs, rhs = operands.lhs.shape, operands.rhs.shape
    batch = broadcast_shapes(*(array.shape[:-2] for array in operands.present()))
    columns = rhs[-2 if product.transpose_rhs else -1] // (2 if product.side_by_side else 1)
    return *batch, lhs[-1 if product.transpose_lhs else -2], columns
