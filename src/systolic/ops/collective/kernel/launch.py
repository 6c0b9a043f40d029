"""The call of a kernel that walks a ring, and its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.epilogue import apply_epilogue
from systolic.kernels.launch import vmem_shapes
from systolic.ops.collective.schedule import RingSchedule
from systolic.schedule import VmemBuffer


class RingOperands(NamedTuple):
    """The operands of one device, or their refs."""

    x: Any  # [rows, k]
    w: Any  # [k, columns]
    ring: Any  # int32 [devices]: axis indices round the ring. Any order is right, neighbors one hop apart are fast.
    bias: Any = None  # float32 [blocks, 1, block]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RingKernel:
    """All that a kernel knows besides its operands.

    Attributes:
      axis_name: the mesh axis of the ring, of which the device is a part under `shard_map`.
      collective_id: the barrier's number. Calls over another axis in the same program need another one.
      precision: of float32 operands.
    """

    schedule: RingSchedule
    axis_name: str
    collective_id: int
    dtype_out: str
    precision: lax.Precision = lax.Precision.DEFAULT
    activation: Callable[..., Any] | None = None
    vmem_limit_bytes: int
    interpret: bool | pltpu.InterpretParams = False

    def launch(
        self,
        body: Callable[..., None],
        operands: RingOperands,
        *,
        name: str,
        rows: int,
        buffers: tuple[VmemBuffer, ...],
        semaphores: dict[str, Any],
    ) -> Array:
        """Return [rows, columns] of `body`, which gets refs of the operands and the result, and scratch by name."""
        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        scalars, vmem = (pl.BlockSpec(memory_space=memory) for memory in (pltpu.SMEM, pltpu.VMEM))
        (x_rows, k), columns = operands.x.shape, operands.w.shape[1]
        call = pl.pallas_call(
            lambda refs, out_hbm, scratch: body(refs, out_hbm, **scratch, kernel=self),
            out_shape=shape_with_mesh_axes((rows, columns), jnp.dtype(self.dtype_out), jax.tree.leaves(operands)),
            in_specs=[RingOperands(x=hbm, w=hbm, ring=scalars, bias=None if operands.bias is None else vmem)],
            out_specs=hbm,
            scratch_shapes=({f"{key}_vmem": shape for key, shape in vmem_shapes(buffers).items()} | semaphores,),
            compiler_params=pltpu.CompilerParams(
                collective_id=self.collective_id, vmem_limit_bytes=self.vmem_limit_bytes
            ),
            interpret=self.interpret,
            name=f"systolic_{name}_{x_rows}_{k}_{columns}",
        )
        return call(operands)

    def dot(self, x: Any, w: Any) -> Any:
        return jnp.dot(x, w, precision=self.precision, preferred_element_type=jnp.float32)

    def finished(self, total: Any, bias: Any) -> Any:
        """Return a block of the result, made of its sum."""
        return apply_epilogue(total, self.dtype_out, bias=bias, activation=self.activation)
