"""Products across chips by the Pallas kernels, with the schedule that takes least time by arithmetic."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.compat.mesh_values import mesh_value
from systolic.kernels.interpreted import tracing_for
from systolic.ops.collective.axis_ring import AxisRing
from systolic.ops.collective.cost import RingSizes, fastest_schedule, vmem_limit_bytes
from systolic.ops.collective.kernel.gather import all_gather_matmul
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands
from systolic.ops.collective.kernel.scatter import matmul_reduce_scatter
from systolic.ops.collective.product import RingProduct
from systolic.schedule.legality import IllegalTilesError, Violation


@functools.partial(jax.jit, static_argnums=0)
def by_pallas(product: RingProduct, x: Array, w: tuple[Array, ...], bias: Array | None) -> tuple[Array, ...]:
    """Return the results of `product`, the gathered rows last if it keeps them."""
    chip = product.backend.chip
    assert chip is not None  # else it is computed by XLA
    scatters, devices = product.kind == "scatter", product.devices
    chunks, rows = (devices, x.shape[0] // devices) if scatters else (1, x.shape[0])
    sizes = RingSizes(
        devices=devices,
        rows=rows,
        k=x.shape[1],
        columns=w[0].shape[0 if product.transpose_rhs else 1],
        dtype=x.dtype.name,
        dtype_out=product.dtype_out,
        scatters=scatters,
        weights=len(w),
        outs=product.outs,
        transpose_rhs=product.transpose_rhs,
    )
    _require_support(product, sizes)
    schedule = fastest_schedule(sizes, chip)
    kernel = RingKernel(
        schedule=schedule,
        axis_name=product.axis_name,
        collective_id=product.collective_id,
        dtype_out=product.dtype_out,
        precision=lax.Precision[product.precision.upper()],
        finish=product.finished,
        keeps_x=product.keeps_x,
        vmem_limit_bytes=vmem_limit_bytes(schedule, sizes, chip),
        interpret=product.backend.interpret,
    )
    if product.ring is not None:
        ring = jnp.asarray(product.ring, jnp.int32)
    else:
        ring = mesh_value(AxisRing(axis_name=product.axis_name, size=devices), devices)
    if bias is not None:
        bias = bias.astype(jnp.float32).reshape(schedule.blocks, 1, schedule.block)
    x = _with_rows(product.backend.on_tpu(x), chunks, schedule.rows)
    with tracing_for(chip):
        run = matmul_reduce_scatter if scatters else all_gather_matmul
        results = run(RingOperands(x=x, w=w, ring=ring, bias=bias), kernel)
    return tuple(_with_rows(out, 1 if scatters else devices, rows) for out in jax.tree.leaves(results))


def _with_rows(array: Array, chunks: int, rows: int) -> Array:
    """Pad each chunk of rows, or cut it off."""
    (height, width) = array.shape
    if height == chunks * rows:
        return array
    cut = array.reshape(chunks, height // chunks, width)[:, :rows]
    return jnp.pad(cut, [(0, 0), (0, rows - cut.shape[1]), (0, 0)]).reshape(chunks * rows, width)


def _require_support(product: RingProduct, sizes: RingSizes) -> None:
    violations: list[Violation] = []
    if product.precision == "high" and sizes.dtype == "float32":
        fix = "use default or highest"
        limit = "the kernel multiplies in one or six passes"
        violations.append(Violation(rule="precision", value="high", limit=limit, fix=fix))
    if product.kept_sum not in (None, product.dtype_out):
        value = f"results are {product.dtype_out}, and sums for a derivative {product.kept_sum}"
        limit = "the kernel stores all results in one dtype"
        fix = "leave out preferred_element_type"
        violations.append(Violation(rule="dtype", value=value, limit=limit, fix=fix))
    if violations:
        raise IllegalTilesError("a product on a ring", violations)
