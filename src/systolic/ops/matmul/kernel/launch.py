"""The call of a matmul kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.kernels.epilogue import Functions
from systolic.kernels.launch import memory_of_activations
from systolic.schedule import KernelConfig, Scratch, hbm_traffic, scratch_buffers
from systolic.spec import MatmulSpec, Operands, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulKernel:
    """All that a matmul kernel knows besides its operands.

    Attributes:
      config: legal for the product; `ops` ensures it.
      chip: decides how many cores share the grid.
    """

    spec: MatmulSpec
    functions: Functions
    config: KernelConfig
    chip: Chip
    vmem_limit_bytes: int
    interpret: bool | pltpu.InterpretParams = False

    @property
    def scratch_shapes(self) -> Scratch:
        buffers = scratch_buffers(self.spec, self.config)
        return jax.tree.map(lambda buffer: pltpu.VMEM(buffer.shape, jnp.dtype(buffer.dtype)), buffers)

    def memory_to_read(self, array: Array, side: Side) -> Any:
        """Return the memory from which a kernel that starts its own copies reads an operand: HBM, or any."""
        return pltpu.HBM if side == "rhs" else memory_of_activations(array, self.chip)

    def launch(
        self,
        body: Callable[..., None],
        operands: Operands,
        *,
        in_specs: Operands,
        out_specs: tuple[pl.BlockSpec, ...],
        out_shape: tuple[jax.ShapeDtypeStruct, ...],
        **rest: Any,
    ) -> tuple[Array, ...]:
        """Return all outputs of a body, which is called with the refs of operands and outputs, and the scratch."""
        spec = self.spec
        cost = pl.CostEstimate(
            flops=spec.flops * spec.passes,
            transcendentals=spec.epilogue.transcendentals * spec.batch * spec.m * spec.n,
            bytes_accessed=hbm_traffic(spec, self.config).hbm_bytes,
        )
        run = pl.pallas_call(
            body,
            in_specs=(in_specs,),
            out_specs=(out_specs,),
            out_shape=(out_shape,),
            cost_estimate=cost,
            interpret=self.interpret,
            name=f"systolic_{spec.pairing or 'matmul'}_{spec.dtype_lhs}_{spec.m}_{spec.k}_{spec.n}",
            **rest,
        )
        with jax.named_scope("systolic.matmul"):
            return run(operands)[0]
