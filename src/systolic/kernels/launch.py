"""The arguments of `pallas_call` that all launchers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.compat import shape_with_mesh_axes
from systolic.schedule import VmemBuffer
from systolic.spec import Spec

Arrays = TypeVar("Arrays", bound=NamedTuple)
SpecT = TypeVar("SpecT", bound=Spec)
ScheduleT = TypeVar("ScheduleT")

SMALL_ELEMENTS = 1024  # XLA may insist on another place for a few numbers

# XLA keeps the activations of few tokens in VMEM between two products: 256 of Llama-3 8B have 3.5 Mi elements.
_MAX_ROWS = 256
_MAX_ELEMENTS = 4 * 2**20


def memory_of_activations(array: Array, chip: Chip) -> Any:
    """Return the memory from which a kernel that starts its own copies reads activations: HBM, or any.

    For a kernel that reads HBM, XLA copies what the operation before has left in VMEM, and nothing runs meanwhile.
    Many rows are read from HBM, and so are all on chips for which XLA would first copy an argument of the program to
    VMEM. Weights need no such choice: no operation has just made them.
    """
    is_small = array.size <= _MAX_ELEMENTS and min(array.shape[-2:], default=1) <= _MAX_ROWS
    return pl.ANY if is_small and not chip.moves_arguments else pltpu.HBM


def from_hbm(array: Array, memory: Any = pltpu.HBM) -> Array:
    """Return the array, to be read from HBM by blocks, unless it may be in any memory.

    By default XLA often copies a whole operand to VMEM before the call, from where blocks move more slowly.
    """
    if array.size <= SMALL_ELEMENTS or memory is not pltpu.HBM:
        return array
    return pltpu.with_memory_space_constraint(array, pltpu.HBM)


def _in_memories(operands: Arrays, memories: Mapping[str, Any]) -> Arrays:
    return operands._replace(**{name: from_hbm(getattr(operands, name), memory) for name, memory in memories.items()})


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
    chip: Chip  # decides from which memory activations are read
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
        activations: Sequence[str] = (),
        **rest: Any,
    ) -> Array:
        """Return the output.

        Args:
          body: called with the refs of the operands and of the output, and with the scratch.
          places: block specs of all operands; a spec whose operand is absent is left out.
          shape: the output's.
          from_hbm: names of the operands that the kernel copies from HBM itself.
          activations: names of those that it copies itself from the memory that `memory_of_activations` returns.
          rest: further arguments of `pallas_call`.
        """
        spec: Any = self.spec
        present = {name: array for name, array in operands._asdict().items() if array is not None}
        memories = {name: pltpu.HBM for name in from_hbm if name in present}
        memories |= {name: memory_of_activations(present[name], self.chip) for name in activations if name in present}
        places = places._replace(**{name: pl.BlockSpec(memory_space=memory) for name, memory in memories.items()})
        arrays = operands if self.interpret else _in_memories(operands, memories)
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
