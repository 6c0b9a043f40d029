"""The call of a kernel that walks a ring, and its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import on_cores, vmem_shapes
from systolic.ops.collective.schedule import RingSchedule
from systolic.ops.collective.weight_schedule import WeightSchedule
from systolic.schedule import VmemBuffer

S = TypeVar("S", RingSchedule, WeightSchedule)


class RingOperands(NamedTuple):
    """The operands of one device, or their refs."""

    x: Any  # [rows, k]
    w: tuple[Any, ...]  # one or two matrices [k, columns], or [columns, k]; for reduce-scatter they share x's k
    ring: Any  # int32 [devices]: axis indices round the ring. Any order is right, neighbors one hop apart are fast.
    bias: Any = None  # float32 [blocks, 1, block]
    scales: Any = None  # of a w of int8 or float8, float32 [blocks, 1, block]


class RingResults(NamedTuple):
    """The results of one device, or their refs."""

    outs: tuple[Any, ...]  # [rows, columns]
    x: Any = None  # [devices · rows, k]: all rows, where all-gather × matmul keeps them
    w: Any = None  # all pieces of a gathered weight, where they lie in HBM


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RingKernel(Generic[S]):
    """All that a kernel knows in addition to its operands.

    Attributes:
      axis_name: the mesh axis of the ring, over which `shard_map` runs the kernel.
      collective_id: the barrier's number. Calls over another axis in the same program need another one.
      precision: of float32 operands.
      finish: makes a block of each result from its sums and from a block of the bias.
      keeps_x: True if the gathered rows are a result too.
    """

    schedule: S
    axis_name: str
    collective_id: int
    dtype_out: str
    precision: lax.Precision = lax.Precision.DEFAULT
    finish: Callable[..., tuple[Array, ...]]
    keeps_x: bool = False
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
        gathered_shape: tuple[int, ...] | None = None,
    ) -> RingResults:
        """Return the results of `body`, which gets refs of the operands and the results, and scratch by name."""
        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        scalars, vmem = (pl.BlockSpec(memory_space=memory) for memory in (pltpu.SMEM, pltpu.VMEM))
        (x_rows, k), columns, cores = operands.x.shape, self.schedule.out_columns, self.schedule.cores

        def result(shape: tuple[int, ...], dtype: Any) -> Any:
            return shape_with_mesh_axes(shape, jnp.dtype(dtype), jax.tree.leaves(operands))

        results = RingResults(
            outs=(result((rows, columns), self.dtype_out),) * self.schedule.outs,
            x=result((rows, k), operands.x.dtype) if self.keeps_x else None,
            w=None if gathered_shape is None else result(gathered_shape, operands.x.dtype),
        )
        in_specs = jax.tree.map(lambda _: hbm, operands)._replace(ring=scalars)
        of_columns = {name: vmem for name in ("bias", "scales") if getattr(operands, name) is not None}
        call = pl.pallas_call(
            lambda refs, results, scratch: body(refs, results, **scratch, kernel=self),
            out_shape=(results,),
            in_specs=[in_specs._replace(**of_columns)],
            out_specs=(jax.tree.map(lambda _: hbm, results),),
            scratch_shapes=({f"{key}_vmem": shape for key, shape in vmem_shapes(buffers).items()} | semaphores,),
            interpret=_with_cores(self.interpret, cores),
            name=f"systolic_{name}_{x_rows}_{k}_{columns}",
            **on_cores(cores, collective_id=self.collective_id, vmem_limit_bytes=self.vmem_limit_bytes),
        )
        (results,) = call(operands)
        return results

    def dot(self, x: Any, w: Any) -> Any:
        """Return the sums in float32; integers are summed exactly before they are converted."""
        contracted = ((1,), (1 if self.schedule.transpose_rhs else 0,)), ((), ())
        if jnp.issubdtype(x.dtype, jnp.integer):
            return lax.dot_general(x, w, contracted, preferred_element_type=jnp.int32).astype(jnp.float32)
        if w.dtype == jnp.int8 or x.dtype == jnp.float32:  # the matrix units take float8 with bfloat16
            w = w.astype(x.dtype)
        return lax.dot_general(x, w, contracted, precision=self.precision, preferred_element_type=jnp.float32)

    def block_of(self, columns: Any, k: Any = slice(None)) -> tuple[Any, Any]:
        """Return the index of columns of a block of weights."""
        return (columns, k) if self.schedule.transpose_rhs else (k, columns)


def _with_cores(interpret: bool | pltpu.InterpretParams, cores: int) -> bool | pltpu.InterpretParams:
    """Interpret all cores at once: each waits for what the same core of another device sends."""
    return replace(interpret, num_cores_or_threads=cores) if isinstance(interpret, pltpu.InterpretParams) else interpret
