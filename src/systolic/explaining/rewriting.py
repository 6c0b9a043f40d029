"""A function with a parameter of one of its Pallas calls changed, whoever wrote it.

The change is made in the traced program: the function is traced again, the call's parameters are replaced, and the
result is what is compiled. So a VMEM limit, the buffers of an operand, or the order of the grid can be tried on a
kernel whose launcher has no argument for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.compat.jaxprs import rewritten
from systolic.compiler import NamedFunction, function_name, loaded_function
from systolic.explaining.accumulator import with_scratch_sum
from systolic.support.bugs import runs_user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChange:
    """Changes of one Pallas call; None leaves a parameter as it is."""

    site: tuple[int, ...]  # the way to the call; see `KernelCall`
    vmem_limit_bytes: int | None = None  # the VMEM that the kernel may use
    # Copies of a block, by the operand's place among the inputs and outputs.
    buffers: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] | None = None  # for each axis of the new grid, the axis that it was
    semantics: tuple[str, ...] | None = None  # the semantics of each axis of the new grid
    # Move the sum over these axes (of the old grid) from the output block to scratch memory.
    sum_axes: tuple[int, ...] = ()


class ChangedFunction:
    """A function whose Pallas calls are changed, each at most once. May be sent to a worker."""

    def __init__(self, fn: Callable[..., Any] | NamedFunction, changes: Sequence[CallChange]) -> None:
        self._fn = fn
        self.__name__ = function_name(fn)
        self._changes = {change.site: change for change in changes}

    @runs_user_code
    def __call__(self, *args: Any) -> Any:
        """Trace the function, change its calls, and run the result."""
        import jax
        from jax.extend.core import jaxpr_as_fun

        fn = loaded_function(self._fn)
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        results = jaxpr_as_fun(changed_jaxpr(closed, self._changes))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)


def changed_jaxpr(closed: Any, changes: Mapping[tuple[int, ...], CallChange]) -> Any:
    """Change the calls at these sites in a traced function."""

    def change(equation: Any, path: tuple[int, ...]) -> Any:
        if equation.primitive.name != "pallas_call":
            return None
        return equation.replace(params=_call_params(equation, changes[path])) if path in changes else equation

    return rewritten(closed, change)


def _call_params(equation: Any, change: CallChange) -> dict[str, Any]:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    params = equation.params
    if change.sum_axes:
        params = with_scratch_sum(params, change.sum_axes, [atom.aval for atom in equation.invars])
    changed = dict(params)
    options = params["compiler_params"] or pltpu.CompilerParams()
    mapping = params["grid_mapping"]
    if change.vmem_limit_bytes is not None:
        options = dataclasses.replace(options, vmem_limit_bytes=change.vmem_limit_bytes)
    if change.order is not None:
        mapping = _reordered(mapping, change.order)
        changed["jaxpr"] = _axes_renamed(params["jaxpr"], change.order)
        old = options.dimension_semantics
        if old is not None:
            options = dataclasses.replace(options, dimension_semantics=tuple(old[axis] for axis in change.order))
    if change.semantics is not None:
        options = dataclasses.replace(options, dimension_semantics=change.semantics)
    if change.buffers:
        blocks = list(mapping.block_mappings)
        for at, count in change.buffers:
            blocks[at] = dataclasses.replace(blocks[at], pipeline_mode=pl.Buffered(count))
        mapping = dataclasses.replace(mapping, block_mappings=tuple(blocks))
    return {**changed, "compiler_params": options, "grid_mapping": mapping}


def can_reorder(mapping: Any) -> bool:
    """True if the axes of a grid can be reordered: all have known lengths, and `vmap` made none of them."""
    return not mapping.num_dynamic_grid_bounds and not mapping.vmapped_dims and len(mapping.grid) > 1


def _reordered(mapping: Any, order: Sequence[int]) -> Any:
    blocks = []
    for block in mapping.block_mappings:
        jaxpr = block.index_map_jaxpr.jaxpr
        axes, rest = jaxpr.invars[: len(order)], jaxpr.invars[len(order) :]
        # Names of arguments go with their places; names in the old order would be wrong.
        described = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        moved = jaxpr.replace(invars=[*(axes[axis] for axis in order), *rest], debug_info=described)
        blocks.append(dataclasses.replace(block, index_map_jaxpr=block.index_map_jaxpr.replace(jaxpr=moved)))
    names = mapping.grid_names
    return dataclasses.replace(
        mapping,
        grid=tuple(mapping.grid[axis] for axis in order),
        grid_names=None if names is None else tuple(names[axis] for axis in order),
        block_mappings=tuple(blocks),
    )


def _axes_renamed(jaxpr: Any, order: Sequence[int]) -> Any:
    """Let a kernel's body ask for the grid's axes by their new places."""

    def change(equation: Any, _: tuple[int, ...]) -> Any:
        if equation.primitive.name not in ("program_id", "num_programs"):
            return None
        return equation.replace(params={**equation.params, "axis": order.index(equation.params["axis"])})

    return rewritten(jaxpr, change)
