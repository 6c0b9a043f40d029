"""Move the sum of any Pallas call from its output block to scratch memory.

The output block exists twice, since it is written back while the next one is filled; a scratch buffer exists once and
stays where it is. The kernel's body is traced again with the scratch buffer in place of the output, and the last step
of each output block copies the sum over. Where the output has fewer bits than the sum needs, this does not help: the
body rounds at each step, and only its author knows where to stop doing so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from systolic.analysis import GridVisits, KernelCall, read_references

_SUMS = ("float32", "int32")


def summed_over(call: KernelCall, grid_visits: GridVisits) -> tuple[int, ...]:
    """Find the grid axes over which a call sums in its output block; () if it does not, or the sum cannot move."""
    params = call.equation.params
    outputs = [at for at, operand in enumerate(call.operands) if operand.role == "output"]
    plain = (
        len(outputs) == 1
        and call.operands[outputs[0]].dtype in _SUMS
        and call.operands[outputs[0]].memory == "vmem"
        and not call.aliases
        and 0 not in grid_visits.grid
        and not params["grid_mapping"].num_dynamic_grid_bounds
        and not params["grid_mapping"].vmapped_dims
        and all(operand.memory in ("vmem", "smem") for operand in call.operands)
    )
    if not plain or outputs[0] not in grid_visits.visits or outputs[0] not in read_references(call.body):
        return ()
    visits = grid_visits.visits[outputs[0]]
    by_axis = visits.starts.reshape(*grid_visits.grid, -1)
    still = [axis for axis in range(len(grid_visits.grid)) if (by_axis == by_axis.take([0], axis=axis)).all()]
    long = [axis for axis, size in enumerate(grid_visits.grid) if size > 1]
    over = [axis for axis in still if axis in long]
    # Only trailing axes: all steps of an output block follow each other.
    return tuple(over) if over and over == long[-len(over) :] else ()


def with_scratch_sum(params: Mapping[str, Any], axes: Sequence[int], operands: Sequence[Any]) -> dict[str, Any]:
    """Rewrite the parameters of a Pallas call with its sum in scratch memory.

    `axes` are those over which it sums, see `summed_over`; `operands` abstract values of the call's operands.
    """
    import jax

    traced = jax.make_jaxpr(_launcher(params, axes))(*operands)
    (equation,) = (
        traced_equation for traced_equation in traced.jaxpr.eqns if traced_equation.primitive.name == "pallas_call"
    )
    return dict(equation.params)


def _launcher(params: Mapping[str, Any], axes: Sequence[int]) -> Any:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    mapping, body = params["grid_mapping"], params["jaxpr"]
    blocks = [_block_spec(mapping_of_block) for mapping_of_block in mapping.block_mappings]
    out_at = mapping.num_index_operands + mapping.num_inputs
    out = body.invars[out_at].aval

    def kernel(*refs: Any) -> None:
        *refs_of_call, acc_vmem = refs
        inner = [acc_vmem if at == out_at else ref for at, ref in enumerate(refs_of_call)]
        jaxpr_as_fun(ClosedJaxpr(body, ()))(*inner)
        last = True
        for axis in axes:
            last &= pl.program_id(axis) == pl.num_programs(axis) - 1

        @pl.when(last)
        def _() -> None:
            refs_of_call[out_at][...] = acc_vmem[...]

    scratch = [
        pltpu.SMEM(aval.shape, aval.dtype) if "smem" in str(aval.memory_space) else pltpu.VMEM(aval.shape, aval.dtype)
        for aval in mapping.scratch_avals
    ]
    return pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in params["out_avals"]],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=mapping.num_index_operands,
            grid=mapping.grid,
            in_specs=blocks[: mapping.num_inputs],
            out_specs=blocks[mapping.num_inputs :],
            scratch_shapes=[*scratch, pltpu.VMEM(out.shape, out.dtype)],
        ),
        compiler_params=params["compiler_params"] or pltpu.CompilerParams(),
        cost_estimate=params["cost_estimate"],
        name=params["name"],
    )


def _block_spec(block: Any) -> Any:
    from jax.experimental import pallas as pl
    from jax.extend.core import jaxpr_as_fun

    index_map = jaxpr_as_fun(block.index_map_jaxpr)
    return pl.BlockSpec(
        block.block_shape,
        lambda *ids: tuple(index_map(*ids)),
        memory_space=block.transformed_block_aval.memory_space,
        pipeline_mode=block.pipeline_mode,
    )
