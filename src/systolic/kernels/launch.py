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

from systolic.compat import shape_with_mesh_axes
from systolic.schedule import VmemBuffer
from systolic.spec import Spec

Arrays = TypeVar("Arrays", bound=NamedTuple)
SpecT = TypeVar("SpecT", bound=Spec)
ScheduleT = TypeVar("ScheduleT")

SMALL_ELEMENTS = 1024  # XLA may insist on another place for a few numbers


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


def vmem_shapes(buffers: Iterable[VmemBuffer], **dtypes: Any) -> dict[str, Any]:
    """Return by name the VMEM of a schedule's buffers that the kernel allocates; `dtypes` override the schedule's."""
    return {
        buffer.name: pltpu.VMEM(buffer.ref_shape, jnp.dtype(dtypes.get(buffer.name, buffer.dtype)))
        for buffer in buffers
        if buffer.ref_shape is not None
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmKernel(Generic[SpecT, ScheduleT]):
    """All that a kernel knows in addition to its operands, if it copies its output to HBM itself."""

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
          places: block specs of all operands; a spec whose operand is absent is left out.
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
