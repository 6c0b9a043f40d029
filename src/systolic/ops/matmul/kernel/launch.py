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
from systolic.schedule import KernelConfig, Scratch, hbm_traffic, scratch_buffers
from systolic.spec import MatmulSpec, Operands, Side

# XLA keeps the activations of few tokens in VMEM between two products: 256 of Llama-3 8B have 3.5 Mi elements.
_MAX_ROWS = 256
_MAX_ELEMENTS = 4 * 2**20


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
        """Return the memory from which a kernel that starts its own copies reads an operand: HBM, or any.

        For a kernel that reads HBM, XLA copies what the operation before has left in VMEM, and nothing runs meanwhile.
        Weights stay in HBM: no operation has just made them. Activations do, too, on chips for which XLA would first
        copy an argument of the program to VMEM.
        """
        is_small = array.size <= _MAX_ELEMENTS and min(array.shape[-2:], default=1) <= _MAX_ROWS
        return pl.ANY if side != "rhs" and is_small and not self.chip.moves_arguments else pltpu.HBM

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
