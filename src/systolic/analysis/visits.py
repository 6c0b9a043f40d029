"""Find the blocks that a kernel's grid visits, in order: evaluate index maps for every step.

Pallas' pipeline copies an input block in when it differs from the previous step's, and an output block out when the
next step has another block, or at the end. So the number of copies is the number of runs of equal blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.analysis.calls import KernelCall, Operand, kernel_calls
from systolic.compat.jaxpr_values import bound, evaluate
from systolic.compat.jaxprs import called_function, is_literal
from systolic.compiler import Missing, PallasOperands, at_stage, pallas_operands
from systolic.spec import dtype_bytes

# The largest grid whose steps are evaluated: a product of 16384³ in tiles of 128³ has two million.
MAX_GRID_STEPS = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The blocks of one operand, step by step, the last grid axis fastest."""

    operand: Operand  # the operand that is cut into the blocks
    # int64[steps, rank], the first element of the block along each dimension of the array.
    starts: np.ndarray

    @property
    def changes(self) -> np.ndarray:
        """bool[steps]: True if a step's block differs from the previous step's, and for the first step."""
        changed = np.ones(len(self.starts), dtype=bool)
        changed[1:] = (self.starts[1:] != self.starts[:-1]).any(axis=1)
        return changed

    @property
    def fetches(self) -> int:
        """Blocks that are copied, in or out."""
        return int(self.changes.sum())

    @property
    def distinct(self) -> np.ndarray:
        """int64[blocks, rank]: every visited block once, in order of position."""
        keys = self._keys()
        return np.unique(self.starts, axis=0) if keys is None else self.starts[np.unique(keys, return_index=True)[1]]

    @property
    def comes_back(self) -> bool:
        """True if a block is visited again after others."""
        return self.fetches != len(self.distinct)

    def _keys(self) -> np.ndarray | None:
        """Number the block of each step in order of position: int64[steps]; None if the numbers would be too large.

        For millions of steps, sorting one number per step is seconds faster than sorting rows.
        """
        if not len(self.starts):
            return None
        least = self.starts.min(axis=0)
        spans = [int(span) + 1 for span in self.starts.max(axis=0) - least]
        if math.prod(spans) > np.iinfo(np.int64).max:
            return None
        keys = np.zeros(len(self.starts), np.int64)
        for dimension, span in enumerate(spans):
            keys = keys * span + (self.starts[:, dimension] - least[dimension])
        return keys

    def elements(self, starts: np.ndarray) -> np.ndarray:
        """Count the elements of the blocks at `starts` that lie inside the array: int64[blocks]."""
        low = np.clip(starts, 0, self.operand.shape)
        high = np.clip(starts + np.array(self.operand.block, dtype=np.int64), 0, self.operand.shape)
        return np.prod(np.maximum(high - low, 0), axis=1, dtype=np.int64)

    @property
    def moved_bytes(self) -> int:
        """Bytes of all copies."""
        return int(self.elements(self.starts[self.changes]).sum()) * dtype_bytes(self.operand.dtype)

    @property
    def least_bytes(self) -> int:
        """Bytes of every visited block, counted once."""
        return int(self.elements(self.distinct).sum()) * dtype_bytes(self.operand.dtype)

    def numbered(self) -> np.ndarray:
        """Number the block of each step; equal blocks get equal numbers: int64[steps]."""
        keys = self._keys()
        if keys is None:
            return np.unique(self.starts, axis=0, return_inverse=True)[1].reshape(-1)
        return np.unique(keys, return_inverse=True)[1].reshape(-1)

    def shared_blocks(self, grid: Sequence[int]) -> list[int]:
        """Count, for each axis of the grid, the blocks that are visited at more than one of its indices."""
        if not len(self.starts):
            return [0] * len(grid)
        numbers = self.numbered()
        blocks = int(numbers.max()) + 1
        counts = []
        for axis, size in enumerate(grid):
            index = np.broadcast_to(np.arange(size).reshape(-1, *[1] * (len(grid) - axis - 1)), grid).reshape(-1)
            least, last = np.full(blocks, size), np.full(blocks, -1)
            np.minimum.at(least, numbers, index)
            np.maximum.at(last, numbers, index)
            counts.append(int((least != last).sum()))
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class GridVisits:
    """One execution of a kernel call."""

    grid: tuple[int, ...]  # steps along each axis
    # The visits of each operand that has blocks, by its position among the kernel's parameters.
    visits: dict[int, Visits]

    @property
    def moved_bytes(self) -> int:
        """Bytes of all copies of all operands."""
        return sum(visits.moved_bytes for visits in self.visits.values())

    @property
    def outputs(self) -> list[Visits]:
        """The visits of the output blocks."""
        return [visits for visits in self.visits.values() if visits.operand.role == "output"]

    def reordered(self, order: Sequence[int]) -> GridVisits:
        """Put the axes of the grid in another order; `order` names the old axis of each new one."""
        reordered = {}
        for at, visits in self.visits.items():
            by_axis = visits.starts.reshape(*self.grid, -1).transpose(*order, len(order))
            reordered[at] = Visits(visits.operand, by_axis.reshape(len(visits.starts), -1))
        return GridVisits(tuple(self.grid[axis] for axis in order), reordered)


@dataclass(frozen=True, slots=True, eq=False)
class CallOnGrid:
    """A Pallas call, and what its grid visits in its first execution."""

    call: KernelCall
    visits: GridVisits | Missing

    @property
    def known_visits(self) -> GridVisits | None:
        """The visits; None if they depend on values that are not known."""
        return self.visits if isinstance(self.visits, GridVisits) else None

    def visits_of(self, at: int) -> Visits | None:
        """Return the visits of operand number `at`, if they are known."""
        return self.visits.visits.get(at) if isinstance(self.visits, GridVisits) else None


@at_stage("reading")
def calls_on_grids(jaxpr: Any, values: Sequence[np.ndarray | None]) -> list[CallOnGrid]:
    """List the Pallas calls of a traced function, each with the blocks that its first execution visits.

    `values` are the values of its flat arguments; None if only a shape is known.
    """
    executions = first_executions(jaxpr, values)
    calls = []
    for call in kernel_calls(jaxpr):
        with at_stage("reading", call.where):
            calls.append(CallOnGrid(call, _visits(call, executions.get(call.site))))
    return calls


def first_executions(jaxpr: Any, values: Sequence[np.ndarray | None]) -> dict[tuple[int, ...], PallasOperands]:
    """Find the operands of the first execution of each Pallas call, by the call's site."""
    arguments = [shape if value is None else value for shape, value in zip(jaxpr.in_avals, values, strict=True)]
    executions: dict[tuple[int, ...], PallasOperands] = {}
    for execution in pallas_operands(jaxpr, arguments, [str(number) for number in range(len(arguments))]):
        executions.setdefault(execution.site, execution)
    return executions


def _visits(call: KernelCall, execution: PallasOperands | None) -> GridVisits | Missing:
    if execution is None:
        return Missing("a call behind a condition or a loop that depends on values that were not given")
    mapping = call.equation.params["grid_mapping"]
    scalars = mapping.num_dynamic_grid_bounds + mapping.num_index_operands
    return grid_visits(call, [operand.get() for operand in execution.operands[:scalars]])


def grid_visits(call: KernelCall, values: Sequence[Any]) -> GridVisits | Missing:
    """Evaluate the index maps of a call at each step of its grid.

    Args:
      call: the call.
      values: the operands of its equation: arrays, or `Missing`; see `compiler.PallasOperands`.

    Returns:
      The blocks, or what is missing to determine them.
    """
    mapping = call.equation.params["grid_mapping"]
    bounds = mapping.num_dynamic_grid_bounds
    grid: list[int] = []
    lengths = iter(values[:bounds])
    for size in call.grid:
        value = size if size is not None else next(lengths)
        if isinstance(value, Missing):
            return Missing(f"the number of steps is {value.why}")
        grid.append(int(value))
    steps = math.prod(grid)
    if steps > MAX_GRID_STEPS:
        return Missing(f"a grid of {steps:,} steps, of which at most {MAX_GRID_STEPS:,} are evaluated")
    scalars = values[bounds : bounds + mapping.num_index_operands]
    ids = np.indices(grid, dtype=np.int32).reshape(len(grid), steps)
    visits: dict[int, Visits] = {}
    for at, block_mapping in enumerate(mapping.block_mappings, start=mapping.num_index_operands):
        operand = call.operands[at]
        if operand.memory not in ("vmem", "smem"):
            continue
        indices = _indices(block_mapping.index_map_jaxpr, ids, scalars)
        if isinstance(indices, Missing):
            return indices
        factors = np.array([1 if d in operand.by_element else size for d, size in enumerate(operand.block)])
        visits[at] = Visits(operand, indices * factors)
    return GridVisits(tuple(grid), visits)


def _indices(closed: Any, ids: np.ndarray, scalars: Sequence[Any]) -> np.ndarray | Missing:
    """Evaluate an index map at each step: int64[steps, rank]."""
    steps = ids.shape[1]
    jaxpr = closed.jaxpr
    if not jaxpr.eqns:  # most index maps only select and order grid indices
        variables = dict(zip(jaxpr.invars, ids, strict=False))
        columns = [np.full(steps, atom.val) if is_literal(atom) else variables[atom] for atom in jaxpr.outvars]
        return np.stack(columns, axis=1).astype(np.int64) if columns else np.zeros((steps, 0), np.int64)
    used = [
        value
        for variable, value in zip(jaxpr.invars[len(ids) :], scalars, strict=False)
        if any(variable is atom for equation in jaxpr.eqns for atom in equation.invars)
    ]
    for value in used:
        if isinstance(value, Missing):
            return value
    import jax

    held = [None if isinstance(value, Missing) else np.asarray(value) for value in scalars]

    def of_step(step_ids: Any) -> list[Any]:
        return evaluate(closed, [*(step_ids[axis] for axis in range(len(ids))), *held], _index_map_step)

    try:
        with jax.ensure_compile_time_eval():
            columns = jax.jit(jax.vmap(of_step, in_axes=1))(ids)
    except Exception as error:  # noqa: BLE001 -- branches and loops that read scalars, which the compiler accepts
        text = (str(error).strip() or "-").splitlines()[0]
        return Missing(f"an index map that cannot be evaluated ({type(error).__name__}: {text})")
    return np.stack([np.broadcast_to(np.asarray(column), steps) for column in columns], axis=1).astype(np.int64)


def _index_map_step(equation: Any, inputs: list[Any]) -> list[Any]:
    """Evaluate an equation of an index map. Its references are read-only scalar memory, passed as arrays."""
    import jax

    if equation.primitive.name == "get":
        return [_element(inputs[0], jax.tree.unflatten(equation.params["tree"], inputs[1:]))]
    function = called_function(equation)
    return bound(equation, inputs) if function is None else evaluate(function, inputs, _index_map_step)


def _element(array: Any, indexers: Sequence[Any]) -> Any:
    import jax.numpy as jnp

    element = jnp.asarray(array)
    for indexer in indexers:
        element = element[tuple(indexer.indices)]
    return element
