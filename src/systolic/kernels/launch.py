"""The arguments of `pallas_call` that all launchers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.compat import shape_with_mesh_axes
from systolic.schedule import KernelConfig, Scratch, VmemBuffer, hbm_traffic, scratch_buffers
from systolic.spec import MatmulSpec, Operands, Side, Spec

Arrays = TypeVar("Arrays", bound=NamedTuple)
SpecT = TypeVar("SpecT", bound=Spec)
ScheduleT = TypeVar("ScheduleT")

SMALL_ELEMENTS = 1024  # XLA may insist on another place for a few numbers

# XLA keeps the activations of few tokens in VMEM between two products: 256 of Llama-3 8B have 3.5 Mi elements.
_MAX_ROWS = 256
_MAX_ELEMENTS = 4 * 2**20


def memory_to_read(array: Array, side: Side, chip: Chip) -> Any:
    """Return the memory from which a kernel that starts its own copies reads an operand: HBM, or any.

    For a kernel that reads HBM, XLA copies what the operation before has left in VMEM, and nothing runs meanwhile.
    Weights stay in HBM: no operation has just made them. Activations do, too, on chips for which XLA would first copy
    an argument of the program to VMEM.
    """
    is_small = array.size <= _MAX_ELEMENTS and min(array.shape[-2:], default=1) <= _MAX_ROWS
    return pl.ANY if side != "rhs" and is_small and not chip.moves_arguments else pltpu.HBM


def from_hbm(array: Array, memory: Any = pltpu.HBM) -> Array:
    """Return the array, to be read from HBM by blocks, unless it may be in any memory.

    By default XLA often copies a whole operand to VMEM before the call, from where blocks move more slowly.
    """
    if array.size <= SMALL_ELEMENTS or memory is not pltpu.HBM:
        return array
    return pltpu.with_memory_space_constraint(array, pltpu.HBM)


def _read_from_hbm(operands: Arrays, names: Sequence[str]) -> Arrays:
    arrays = {name: getattr(operands, name) for name in names}
    return operands._replace(**{name: from_hbm(array) for name, array in arrays.items() if array is not None})


def on_cores(cores: int, **compiler_params: Any) -> dict[str, Any]:
    """Return the `pallas_call` arguments that run a kernel's body once on each core; one core needs no grid."""
    if cores == 1:
        return {"compiler_params": pltpu.CompilerParams(**compiler_params)}
    params = pltpu.CompilerParams(dimension_semantics=("parallel",), **compiler_params)
    return {"grid": (cores,), "compiler_params": params}


def core_number(cores: int) -> Any:
    """Return the number of the core that runs the kernel's body; call it outside of loops and conditions."""
    return pl.program_id(0) if cores > 1 else 0


def scratch_shapes(spec: MatmulSpec, config: KernelConfig) -> Scratch:
    return jax.tree.map(lambda one: pltpu.VMEM(one.shape, jnp.dtype(one.dtype)), scratch_buffers(spec, config))


def vmem_shapes(buffers: Iterable[VmemBuffer], **dtypes: Any) -> dict[str, Any]:
    """Return by name the VMEM of a schedule's buffers that the kernel allocates; `dtypes` override the schedule's."""
    return {
        buffer.name: pltpu.VMEM(buffer.ref_shape, jnp.dtype(dtypes.get(buffer.name, buffer.dtype)))
        for buffer in buffers
        if buffer.ref_shape is not None
    }


def launch(
    kernel: Callable[..., None],
    operands: Operands,
    *,
    spec: MatmulSpec,
    config: KernelConfig,
    interpret: bool | pltpu.InterpretParams,
    in_specs: Operands,
    out_specs: tuple[pl.BlockSpec, ...],
    out_shape: tuple[jax.ShapeDtypeStruct, ...],
    **rest: Any,
) -> tuple[Array, ...]:
    """Return all outputs of a kernel, which is called with the refs of operands and outputs, and the scratch."""
    cost = pl.CostEstimate(
        flops=spec.flops * spec.passes,
        transcendentals=spec.epilogue.transcendentals * spec.batch * spec.m * spec.n,
        bytes_accessed=hbm_traffic(spec, config).hbm_bytes,
    )
    run = pl.pallas_call(
        kernel,
        in_specs=(in_specs,),
        out_specs=(out_specs,),
        out_shape=(out_shape,),
        cost_estimate=cost,
        interpret=interpret,
        name=f"systolic_{spec.pairing or 'matmul'}_{spec.dtype_lhs}_{spec.m}_{spec.k}_{spec.n}",
        **rest,
    )
    with jax.named_scope("systolic.matmul"):
        return run(operands)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmKernel(Generic[SpecT, ScheduleT]):
    """All that a kernel knows besides its operands, if it copies its output to HBM itself."""

    spec: SpecT
    schedule: ScheduleT
    vmem_limit_bytes: int
    interpret: bool | pltpu.InterpretParams = False

    def launch(
        self,
        body: Callable[..., None],
        operands: Arrays,
        places: Arrays,
        shape: tuple[int, ...],
        *,
        from_hbm: Sequence[str] = (),
        **rest: Any,
    ) -> Array:
        """Return the output.

        Args:
          body: called with the refs of the operands and of the output, and with the scratch.
          places: block specs of all operands; those of absent ones are left out.
          shape: the output's.
          from_hbm: names of the operands that the kernel copies from HBM itself.
          rest: further arguments of `pallas_call`.
        """
        spec: Any = self.spec
        arrays = operands if self.interpret else _read_from_hbm(operands, from_hbm)
        in_specs = jax.tree.map(
            lambda array, place: None if array is None else place, arrays, places, is_leaf=lambda array: array is None
        )
        return pl.pallas_call(
            body,
            in_specs=(in_specs,),
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            out_shape=shape_with_mesh_axes(shape, jnp.dtype(spec.dtype_out), jax.tree.leaves(arrays)),
            cost_estimate=pl.CostEstimate(
                flops=spec.flops * spec.passes, transcendentals=0, bytes_accessed=spec.least_hbm_bytes
            ),
            interpret=self.interpret,
            **rest,
        )(arrays)
