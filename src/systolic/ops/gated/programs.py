"""The programs that `bench` compares for a gated product and for the products of its gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.engine.programs import call_options, raced_kernel
from systolic.ops.gated.api import gated_matmul
from systolic.ops.matmul.named import counted, functions_of, matrices
from systolic.ops.matmul.programs import programs_of
from systolic.ops.op_programs import RacedPrograms
from systolic.spec import MatmulSpec


def raced(spec: MatmulSpec, chip: Chip) -> RacedPrograms:
    """Return the call and plain JAX. A product of a gradient has no call: its kernel is raced against XLA."""
    programs = counted(spec)
    if spec.pairing != "gated":
        return raced_kernel(programs_of(programs, chip), programs, chip)
    operands = matrices(programs)
    weights = (operands.rhs,) if spec.side_by_side else (operands.rhs, operands.up)
    return RacedPrograms(
        spec=programs,
        arguments=(operands.lhs, *weights),
        ours=functools.partial(_called, programs, chip),
        xla=functools.partial(_plain, programs),
    )


def _called(spec: MatmulSpec, chip: Chip, x: Array, *weights: Array) -> Array:
    return gated_matmul(x, *weights, activation=spec.epilogue.activation or None, **call_options(spec, chip, "pallas"))


def _plain(spec: MatmulSpec, x: Array, *weights: Array) -> Array:
    activation = functions_of(spec).activation or (lambda value: value)
    # Networks keep their activations in their own dtype.
    dtype_out: Any = jnp.dtype(spec.dtype_out)
    product = functools.partial(
        jnp.matmul, precision=lax.Precision[spec.precision.upper()], preferred_element_type=dtype_out
    )
    if len(weights) == 1:
        gate, up = jnp.split(product(x, weights[0]), 2, axis=-1)
    else:
        gate, up = (product(x, weight) for weight in weights)
    return activation(gate) * up
