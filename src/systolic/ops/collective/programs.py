"""The programs of a product across chips that `tune` compiles: the kernel on every device of a slice, and XLA's."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from systolic.chips import Chip
from systolic.ops.collective.arguments import axis_ring, barrier_number
from systolic.ops.collective.pallas import by_pallas
from systolic.ops.collective.product import WEIGHT_CUTS, Kind, RingProduct
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.slices import RING
from systolic.ops.collective.xla import dequantized
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import BY_XLA, Backend
from systolic.ops.op_programs import Programs, Shardings
from systolic.ops.quantized.array import Quantized
from systolic.schedule import KernelConfig
from systolic.spec import SpecError, accumulator_dtype

_KINDS: dict[str, Kind] = {cut: kind for kind, cut in WEIGHT_CUTS.items()}


def programs_of(sizes: RingSizes | WeightSizes, chip: Chip) -> Programs:
    """Return the programs of a product; one with two weights is gated with silu, or adds its products.

    Raises:
      SpecError: the slice is not known, or no layer has this number of results.
    """
    if sizes.slice_mesh is None:
        raise SpecError(f"{sizes}: a product across chips is tuned on a slice; set slice_mesh")
    product = _product(sizes, BY_XLA)
    if product.outs != sizes.outs:
        raise SpecError(f"outs={sizes.outs} with {sizes.weights} weights: use 1 or {product.outs}")
    axes = sizes.slice_mesh.sizes
    others = tuple(axis for axis in axes if axis != RING)
    all_axes = (*others, RING)
    rows, k, columns, devices = sizes.rows * math.prod(axes.values()), sizes.k, sizes.columns, sizes.devices
    x_cut = result = P(all_axes, None)
    match product.kind:
        case "gather":
            columns, w_cut, result = columns * devices, (None, RING), P(others, RING)
        case "scatter":
            k, x_cut, w_cut = k * devices, P(others, RING), (RING, None)
        case "weight by k":
            w_cut = (RING, None)
        case "weight by n":
            columns, w_cut = columns * devices, (None, RING)
    weight = (k // sizes.weights if product.kind == "scatter" else k, columns)
    order = -1 if sizes.transpose_rhs else 1
    operands = [((rows, k), sizes.dtype), *[(weight[::order], _weight_dtype(sizes) or sizes.dtype)] * sizes.weights]
    if _weight_dtype(sizes) is not None:
        # Scales are cut as their values; where these are cut by k, each device has scales of its own.
        operands.append(((devices if w_cut[0] else 1, columns)[::order], "float32"))
    cuts = (x_cut, *[P(*w_cut[::order])] * (len(operands) - 1))
    results = result if sizes.outs == 1 else (result,) * sizes.outs
    return Programs(
        computed=sizes,
        arguments=tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in operands),
        pallas=functools.partial(_by_kernel, sizes, chip, cuts, results),
        xla=functools.partial(_by_xla, sizes),
        shardings=Shardings(arguments=cuts, result=results),
    )


def _weight_dtype(sizes: RingSizes | WeightSizes) -> str | None:
    return sizes.weight_dtype if isinstance(sizes, RingSizes) else None


def _weights(sizes: RingSizes | WeightSizes, w: tuple[Array, ...]) -> tuple[Array | Quantized, ...]:
    """Return weights as a product takes them, of values and scales if they are quantized."""
    return w if _weight_dtype(sizes) is None else (Quantized(*w),)


def _product(sizes: RingSizes | WeightSizes, backend: Backend) -> RingProduct:
    scatters = isinstance(sizes, RingSizes) and sizes.scatters
    kind = _KINDS[sizes.cut] if isinstance(sizes, WeightSizes) else "scatter" if scatters else "gather"
    pairing = None if sizes.weights == 1 else "added" if scatters else "gated"
    activation, function = activation_of("silu" if pairing == "gated" else None)
    return RingProduct(
        backend=backend,
        kind=kind,
        axis_name=RING,
        devices=sizes.devices,
        ring=None,
        collective_id=0,
        precision=sizes.precision,
        dtype_out=sizes.dtype_out,
        activation=activation,
        function=function,
        transpose_rhs=sizes.transpose_rhs,
        pairing=pairing,
        kept_sum=sizes.dtype_out if sizes.outs > 1 else None,
        wire_dtype=sizes.wire_dtype if isinstance(sizes, RingSizes) else None,
    )


def _by_kernel(
    sizes: RingSizes | WeightSizes, chip: Chip, cuts: Any, results: Any, config: KernelConfig, *operands: Array
) -> Any:
    product = _product(sizes, Backend(implementation="pallas", chip=chip, tiles=config))

    def compute(x: Array, *w: Array) -> Any:
        ring, number = axis_ring(RING, sizes.devices), barrier_number(RING)
        outs = by_pallas(replace(product, ring=ring, collective_id=number), x, _weights(sizes, w), None)
        return outs[0] if len(outs) == 1 else outs

    mesh = jax.typeof(operands[0]).sharding.mesh
    return jax.jit(jax.shard_map(compute, mesh=mesh, in_specs=cuts, out_specs=results, check_vma=False))(*operands)


def _by_xla(sizes: RingSizes | WeightSizes, x: Array, *w: Array) -> Any:
    product = _product(sizes, BY_XLA)
    dtype = accumulator_dtype(sizes.dtype)
    w = dequantized(_weights(sizes, w), x.dtype)
    if product.kind == "scatter":
        # Each device has a part of every weight's k, one below the other. Sums travel in the dtype of the result.
        axis = 1 if sizes.transpose_rhs else 0
        parts = [jnp.stack(jnp.split(side, sizes.devices, axis), axis) for side in w]
        both = jnp.concatenate(parts, axis + 1)
        shape = (both.shape[0], -1) if sizes.transpose_rhs else (-1, both.shape[-1])
        w, dtype = (both.reshape(shape),), sizes.dtype_out
    precision = lax.Precision[sizes.precision.upper()]
    totals = tuple(
        jnp.matmul(x, side.T if sizes.transpose_rhs else side, precision=precision, preferred_element_type=dtype)
        for side in w
    )
    outs = product.finished(totals, None)
    return outs[0] if len(outs) == 1 else outs
