"""What a function's kernels ask for, worked out from the traced program. For a worker: it runs the user's code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.analysis.body import body_equations
from systolic.analysis.calls import KernelCall
from systolic.analysis.visits import CallOnGrid, GridVisits, Visits, calls_on_grids
from systolic.checking.finding import Finding
from systolic.checking.rules.grid import grid_findings
from systolic.checking.rules.memory import vmem_estimate
from systolic.checking.rules.steps import dot_flops
from systolic.checking.static import findings_of
from systolic.chips import Chip, UnsupportedDtypeError
from systolic.compiler import NamedFunction, traced_jaxpr
from systolic.explaining.accumulator import summed_over
from systolic.explaining.explanation import LineWork, OperandTraffic
from systolic.explaining.lines import kernel_work, matrix_flops, rounds_of_calls
from systolic.explaining.parameters import TileParameter, tile_parameters
from systolic.explaining.rewriting import can_reorder
from systolic.explaining.spills import spilled_bytes
from systolic.spec import dtype_bytes
from systolic.timing import target_of

# What a step of the pipeline costs beside its work, roughly: it only decides which candidates are simulated first.
_STEP_S = 0.3e-6
_MOST_AXES = 4  # of a grid whose orders are all tried: 24 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOrder:
    """Another order of a call's grid: for each new axis the old one, and how many bytes its blocks then move."""

    order: tuple[int, ...]
    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """One Pallas call, as far as changing it goes.

    Attributes:
      moved_bytes: of all copies of blocks; None where they depend on values.
      orders: other legal orders of the grid that move other amounts, the least first.
      independent: for each axis, whether its steps write different output blocks.
      vmem_bytes: estimated.
      single: inputs and outputs, by place, that have one buffer only.
      scratch: name and bytes of its buffers in VMEM.
      sum_axes: axes over which it sums in its output block, where the sum could move to scratch memory.
      rounds: how often the function runs it; None: as often as values say. All else is of its first execution.
    """

    site: tuple[int, ...]
    name: str
    where: str
    grid: tuple[int, ...] | None
    semantics: tuple[str, ...]
    moved_bytes: int | None
    orders: tuple[GridOrder, ...]
    independent: tuple[bool, ...]
    vmem_bytes: int
    vmem_limit_bytes: int
    sets_limit: bool
    single: tuple[int, ...]
    scratch: tuple[tuple[str, int], ...]
    sum_axes: tuple[int, ...]
    rounds: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """What the products of a function have in common.

    Attributes:
      dtype: of the operands of the largest; "bfloat16" where there are none.
      transposes: whether lhs and rhs are contracted as if stored the other way round; None: not alike, or something is
        transposed by itself.
      precision: that all ask for; None: the default, or not alike.
    """

    dtype: str = "bfloat16"
    transposes: tuple[bool, bool] | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What the traced program says.

    Attributes:
      modelled_us: arithmetic and traffic of the kernels; only to decide what is simulated first.
      flops: operations of all products; None where some run an unknown number of times.
      dtype: of the products' operands; "bfloat16" where there are none.
      out: shapes of the results.
    """

    calls: tuple[CallFacts, ...]
    parameters: tuple[TileParameter, ...]
    traffic: tuple[OperandTraffic, ...]
    lines: tuple[LineWork, ...]
    flops: float | None
    dtype: str
    dots: Dots
    findings: tuple[Finding, ...]
    modelled_us: float
    out: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Reasons not to compile it."""
        return tuple(found for found in self.findings if found.grade == "error")


def study(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    settings: Mapping[str, Any],
) -> Study:
    """Traces `fn(*args)` and works out what its kernels ask for.

    Raises:
      Exception: whatever the function raises while it is traced.
    """
    loaded = fn.load() if isinstance(fn, NamedFunction) else fn
    jaxpr = traced_jaxpr(fn, args, target_of(chip), settings=settings)
    calls = calls_on_grids(jaxpr, values)
    facts, traffic, lines = [], [], []
    flops: float | None = matrix_flops(jaxpr.jaxpr)
    modelled_s = 0.0
    dots, rounds = _dots(jaxpr), rounds_of_calls(jaxpr.jaxpr)
    dtype = _product_dtype(calls) or dots.dtype
    for each in calls:
        often = rounds.get((each.call.site, id(each.call.equation)))
        grid = each.visits.grid if isinstance(each.visits, GridVisits) else None
        work = kernel_work(each.call, grid)
        lines += work.lines
        flops = None if flops is None or work.flops is None or often is None else flops + often * work.flops
        facts.append(_facts(each, chip, often))
        traffic += _traffic(each)
        modelled_s += (often or 1) * _modelled_s(facts[-1], work.flops, dtype, chip)
    return Study(
        calls=tuple(facts),
        parameters=tuple(tile_parameters(loaded, [each.call for each in calls])),
        traffic=tuple(traffic),
        lines=tuple(lines),
        flops=flops,
        dtype=dtype,
        dots=dots,
        findings=tuple(findings_of(jaxpr, calls, chip)),
        modelled_us=modelled_s * 1e6,
        out=tuple((tuple(aval.shape), str(aval.dtype)) for aval in jaxpr.out_avals),
    )


def _dots(jaxpr: Any) -> Dots:
    everything = list(body_equations(jaxpr.jaxpr))
    dots = [equation for equation in everything if equation.primitive.name == "dot_general"]
    if not dots:
        return Dots()
    contracted = {equation.params["dimension_numbers"] for equation in dots}
    known = {(((turned[0],), (turned[1],)), ((), ())): turned for turned in itertools.product((0, 1), repeat=2)}
    turned = known.get(next(iter(contracted))) if len(contracted) == 1 else None
    if any(equation.primitive.name == "transpose" for equation in everything):
        turned = None
    asked = {equation.params.get("precision") for equation in dots}
    precision = next(iter(asked)) if len(asked) == 1 else None
    names = {str(getattr(each, "name", each)).lower() for each in precision} if isinstance(precision, tuple) else set()
    return Dots(
        dtype=str(max(dots, key=dot_flops).invars[0].aval.dtype),
        transposes=None if turned is None else (turned[0] == 0, turned[1] == 1),
        precision=names.pop() if len(names) == 1 else None,
    )


def _product_dtype(calls: Sequence[CallOnGrid]) -> str | None:
    """Of the operands of the kernels that matter: that of the largest input; None where there are no kernels."""
    inputs = [operand for each in calls for operand in each.call.of("input") if len(operand.shape) > 1]
    largest = max(inputs, key=lambda operand: math.prod(operand.shape), default=None)
    return largest.dtype if largest is not None else None


def _modelled_s(facts: CallFacts, flops: float | None, dtype: str, chip: Chip) -> float:
    try:
        peak = chip.peak_ops_per_s(dtype)
    except UnsupportedDtypeError:
        peak = chip.peak_ops_per_s("bfloat16")
    steps = math.prod(facts.grid or (1,))
    copying = (facts.moved_bytes or 0) / chip.machine.hbm_bytes_per_s
    return max((flops or 0.0) / peak, copying) + steps * _STEP_S


def _facts(each: CallOnGrid, chip: Chip, rounds: int | None) -> CallFacts:
    call, found = each.call, each.visits
    estimate = vmem_estimate(call, chip)
    blocks = call.of("input", "output")
    known = isinstance(found, GridVisits)
    return CallFacts(
        site=call.site,
        name=call.name,
        where=call.where,
        grid=found.grid if isinstance(found, GridVisits) else None,
        semantics=call.semantics,
        moved_bytes=sum(visits.moved_bytes for visits in found.visits.values()) if known and found.visits else None,
        orders=_orders(call, found, chip) if isinstance(found, GridVisits) else (),
        independent=_independent(found) if isinstance(found, GridVisits) else (),
        vmem_bytes=estimate.total_bytes + spilled_bytes(call),
        vmem_limit_bytes=estimate.limit_bytes,
        sets_limit=call.vmem_limit_bytes is not None,
        single=tuple(at for at, operand in enumerate(blocks) if operand.buffers == 1),
        scratch=tuple(
            (part.name, part.size_bytes) for part in estimate.parts if part.kind == "scratch" and part.size_bytes
        ),
        sum_axes=summed_over(call, found) if isinstance(found, GridVisits) else (),
        rounds=rounds,
    )


def _orders(call: KernelCall, found: GridVisits, chip: Chip) -> tuple[GridOrder, ...]:
    axes = len(found.grid)
    if not can_reorder(call.equation.params["grid_mapping"]) or axes > _MOST_AXES or 0 in found.grid:
        return ()
    seen = {sum(visits.moved_bytes for visits in found.visits.values())}
    orders = []
    for order in itertools.permutations(range(axes)):
        turned = _turned(found, order)
        moved = sum(visits.moved_bytes for visits in turned.visits.values())
        if moved in seen or any(each.grade == "error" for each in grid_findings(call, turned, chip)):
            continue
        seen.add(moved)
        orders.append(GridOrder(order=order, moved_bytes=moved))
    return tuple(sorted(orders, key=lambda each: each.moved_bytes))


def _turned(found: GridVisits, order: Sequence[int]) -> GridVisits:
    """The same blocks with the axes of the grid in another order."""
    axes = len(order)
    visits = {}
    for at, each in found.visits.items():
        by_axis = each.starts.reshape(*found.grid, -1)
        visits[at] = Visits(each.operand, by_axis.transpose(*order, axes).reshape(len(each.starts), -1))
    return GridVisits(tuple(found.grid[axis] for axis in order), visits)


def _independent(found: GridVisits) -> tuple[bool, ...]:
    """Of each axis, whether no output block is written at two of its places."""
    ids = np.indices(found.grid).reshape(len(found.grid), math.prod(found.grid))
    apart = [True] * len(found.grid)
    for visits in found.visits.values():
        if visits.operand.role != "output" or not len(visits.starts):
            continue
        numbers = visits.numbered()
        for axis, size in enumerate(found.grid):
            least, most = np.full(numbers.max() + 1, size), np.full(numbers.max() + 1, -1)
            np.minimum.at(least, numbers, ids[axis])
            np.maximum.at(most, numbers, ids[axis])
            apart[axis] &= bool((least == most).all())
    return tuple(apart)


def _traffic(each: CallOnGrid) -> list[OperandTraffic]:
    found = []
    for at, operand in enumerate(each.call.operands):
        if operand.role not in ("input", "output") or operand.memory != "vmem":
            continue
        visits = each.visits.visits.get(at) if isinstance(each.visits, GridVisits) else None
        element = dtype_bytes(operand.dtype)
        found.append(
            OperandTraffic(
                kernel=each.call.name,
                operand=operand.name,
                role=operand.role,
                shape=operand.shape,
                dtype=operand.dtype,
                block=operand.block,
                block_bytes=operand.block_elements * element,
                fetches=visits.fetches if visits is not None else None,
                moved_bytes=visits.moved_bytes if visits is not None else None,
                least_bytes=visits.least_bytes if visits is not None else math.prod(operand.shape) * element,
            )
        )
    return found
