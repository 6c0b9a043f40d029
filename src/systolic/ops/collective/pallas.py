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
def by_pallas(product: RingProduct, x: Array, w: Array, bias: Array | None) -> Array:
    chip = product.backend.chip
    assert chip is not None  # else it is computed by XLA
    scatters, devices = product.kind == "scatter", product.devices
    chunks, rows = (devices, x.shape[0] // devices) if scatters else (1, x.shape[0])
    sizes = RingSizes(
        devices=devices,
        rows=rows,
        k=w.shape[0],
        columns=w.shape[1],
        dtype=x.dtype.name,
        dtype_out=product.dtype_out,
        scatters=scatters,
    )
    _require_passes(product, sizes)
    schedule = fastest_schedule(sizes, chip)
    kernel = RingKernel(
        schedule=schedule,
        axis_name=product.axis_name,
        collective_id=product.collective_id,
        dtype_out=product.dtype_out,
        precision=lax.Precision[product.precision.upper()],
        activation=product.function,
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
        out = run(RingOperands(x=x, w=w, ring=ring, bias=bias), kernel)
    return _with_rows(out, 1 if scatters else devices, rows)


def _with_rows(array: Array, chunks: int, rows: int) -> Array:
    """Pad each chunk of rows, or cut it off."""
    (height, width) = array.shape
    if height == chunks * rows:
        return array
    cut = array.reshape(chunks, height // chunks, width)[:, :rows]
    return jnp.pad(cut, [(0, 0), (0, rows - cut.shape[1]), (0, 0)]).reshape(chunks * rows, width)


def _require_passes(product: RingProduct, sizes: RingSizes) -> None:
    if product.precision == "high" and sizes.dtype == "float32":
        fix = "use default or highest"
        violation = Violation(
            rule="precision", value="high", limit="the kernel multiplies in one or six passes", fix=fix
        )
        raise IllegalTilesError("a product on a ring", [violation])
