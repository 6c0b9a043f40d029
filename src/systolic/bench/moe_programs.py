"""The programs of layers of experts: a product of rows in groups is differentiated as a user would differentiate it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.bench.moe import MoeSpec
from systolic.chips import Chip
from systolic.ops.grouped import grouped_matmul
from systolic.ops.op_programs import RacedPrograms
from systolic.support.bugs import runs_user_code

# Rows [m, k], matrices [groups, k, n] and sizes of groups, to [m, n].
GroupedProduct = Callable[[Array, Array, Array], Array]


def raced(spec: MoeSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Return both programs. The last argument is the group sizes, whose values a simulation has to know."""
    if spec.kind == "gated":
        ours = functools.partial(_gated, chip, implementation)
    else:
        ours = functools.partial(product_of, spec, functools.partial(_ours, chip, implementation))
    return RacedPrograms(
        spec=spec,
        arguments=arguments(spec),
        ours=ours,
        xla=functools.partial(product_of, spec, by_xla),
    )


def arguments(spec: MoeSpec) -> tuple[Any, ...]:
    rows, columns, matrices = (spec.m, spec.k), (spec.m, spec.n), (spec.groups, spec.k, spec.n)
    shapes = {
        "forward": (rows, matrices),
        "dlhs": (columns, matrices),
        "drhs": (rows, columns),
        "gated": (rows, matrices, matrices),
    }[spec.kind]
    arrays = (jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype)) for shape in shapes)
    return *arrays, np.array(spec.sizes, np.int32)


@runs_user_code  # an error without a frame of its own comes from the given product
def product_of(spec: MoeSpec, product: GroupedProduct, *operands: Array) -> Array:
    """Compute the spec with a product of rows in groups and its derivative."""
    *arrays, sizes = operands
    if spec.kind == "gated":
        x, gate, up = arrays
        return jax.nn.silu(product(x, gate, sizes)) * product(x, up, sizes)
    first, second = arrays
    if spec.kind == "forward":
        return product(first, second, sizes)
    # The derivative of one operand does not depend on what it holds.
    if spec.kind == "dlhs":
        rows = jnp.zeros((spec.m, spec.k), first.dtype)
        return jax.vjp(lambda lhs: product(lhs, second, sizes), rows)[1](first)[0]
    matrices = jnp.zeros((spec.groups, spec.k, spec.n), first.dtype)
    return jax.vjp(lambda rhs: product(first, rhs, sizes), matrices)[1](second)[0]


def _ours(chip: Chip, implementation: Any, lhs: Array, rhs: Array, sizes: Array) -> Array:
    return grouped_matmul(lhs, rhs, sizes, implementation=implementation, chip=chip)


def _gated(chip: Chip, implementation: Any, x: Array, gate: Array, up: Array, sizes: Array) -> Array:
    return grouped_matmul(x, gate, sizes, up=up, activation="silu", implementation=implementation, chip=chip)


def by_xla(lhs: Array, rhs: Array, sizes: Array) -> Array:
    return lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=lhs.dtype)
