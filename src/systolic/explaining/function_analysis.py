"""Analyzes the traced program of a function for `explain`. For a worker: it runs the user's code."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from systolic.analysis import (
    CallOnGrid,
    LineOps,
    calls_on_grids,
    dot_flops,
    flops_outside_kernels,
    kernel_ops,
)
from systolic.checking import Finding, static_findings
from systolic.chips import Chip
from systolic.compat.jaxprs import equations
from systolic.compiler import loaded_function, traced_jaxpr
from systolic.compiler.jit_options import without_jit_options
from systolic.cost import Roofline
from systolic.explaining.call_analysis import CallAnalysis, call_analysis, operand_traffic
from systolic.explaining.entering import Home, values_seen
from systolic.explaining.parameters import TileParameter, tile_parameters
from systolic.explaining.parts import OperandTraffic
from systolic.timing import Call

# Rough cost of a step of the pipeline in addition to its work: it only decides which candidates are simulated first.
_STEP_S = 0.3e-6
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """The properties that the products of a function have in common."""

    dtype: str = "bfloat16"  # the operands' dtype in the largest; "bfloat16" where there are none
    # Whether lhs and rhs are contracted as if stored transposed; None: the products differ, or an array is transposed
    # separately.
    transposes: tuple[bool, bool] | None = None
    precision: str | None = None  # the precision that all ask for; None: the default, or they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAnalysis:
    """The analysis of a function's traced program."""

    calls: tuple[CallAnalysis, ...]
    parameters: tuple[TileParameter, ...]
    traffic: tuple[OperandTraffic, ...]
    lines: tuple[LineOps, ...]
    # Operations of all products, on a slice one device's share; None where some run an unknown number of times.
    flops: float | None
    dtype: str  # the products' operands' dtype; "bfloat16" where there are none
    dots: Dots
    findings: tuple[Finding, ...]
    program: str  # a digest of the traced program, equal for equal ones in any process
    # Time for arithmetic, traffic and steps of the kernels; it only decides what is simulated first.
    modelled_us: float
    least_us: float  # the same without the steps: no kernel is faster
    out: tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes of the results

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Reasons not to compile it."""
        return tuple(finding for finding in self.findings if finding.grade == "error")


def analyse_function(call: Call, *, look_inside: bool = False) -> FunctionAnalysis:
    """Trace a function and work out what its kernels ask for; of a function that is sharded over a slice, what they
    ask of one device.

    Args:
      look_inside: find tile sizes in the functions that it calls, and in constants, as well.

    Raises:
      Exception: whatever the function raises while it is traced.
    """
    chip, shape = call.chip, call.shape
    inner, _ = without_jit_options(call.fn)
    loaded = loaded_function(inner)
    with values_seen() if look_inside else nullcontext(dict[Home, Any]()) as inside:
        jaxpr = traced_jaxpr(call.fn, call.args, call.target, settings=call.settings)
    calls = calls_on_grids(jaxpr, call.values)
    analyses, traffic, lines = [], [], []
    flops: float | None = flops_outside_kernels(jaxpr.jaxpr)
    if flops is not None and shape is not None:
        flops /= len(shape.devices)
    least_us, steps_s = 0.0, 0.0
    dots = _dots(jaxpr)
    dtype = _product_dtype(calls) or dots.dtype
    for call_on_grid in calls:
        executions = call_on_grid.call.executions
        grid = visits.grid if (visits := call_on_grid.known_visits) is not None else None
        ops = kernel_ops(call_on_grid.call, grid)
        lines += ops.lines
        flops = None if flops is None or ops.flops is None or executions is None else flops + executions * ops.flops
        analyses.append(call_analysis(call_on_grid, chip))
        traffic += operand_traffic(call_on_grid)
        least_us += (executions or 1) * _least_us(analyses[-1], ops.flops, dtype, chip)
        steps_s += (executions or 1) * math.prod(grid or (1,)) * _STEP_S
    return FunctionAnalysis(
        calls=tuple(analyses),
        parameters=tuple(tile_parameters(loaded, [call_on_grid.call for call_on_grid in calls], inside)),
        traffic=tuple(traffic),
        lines=tuple(lines),
        flops=flops,
        dtype=dtype,
        dots=dots,
        findings=tuple(static_findings(jaxpr, calls, chip)),
        program=_digest(jaxpr),
        modelled_us=least_us + steps_s * 1e6,
        least_us=least_us,
        out=tuple((tuple(aval.shape), str(aval.dtype)) for aval in jaxpr.out_avals),
    )


def _dots(jaxpr: Any) -> Dots:
    everything = list(equations(jaxpr.jaxpr))
    dots = [equation for equation in everything if equation.primitive.name == "dot_general"]
    if not dots:
        return Dots()
    contracted = {equation.params["dimension_numbers"] for equation in dots}
    orders = {(((turned[0],), (turned[1],)), ((), ())): turned for turned in itertools.product((0, 1), repeat=2)}
    turned = orders.get(next(iter(contracted))) if len(contracted) == 1 else None
    if any(equation.primitive.name == "transpose" for equation in everything):
        turned = None
    precisions = {equation.params.get("precision") for equation in dots}
    precision = next(iter(precisions)) if len(precisions) == 1 else None
    names = {str(getattr(part, "name", part)).lower() for part in precision} if isinstance(precision, tuple) else set()
    return Dots(
        dtype=str(max(dots, key=dot_flops).invars[0].aval.dtype),
        transposes=None if turned is None else (turned[0] == 0, turned[1] == 1),
        precision=names.pop() if len(names) == 1 else None,
    )


def _product_dtype(calls: Sequence[CallOnGrid]) -> str | None:
    """Pick the dtype of the kernels' largest input; None where there are no kernels."""
    inputs = [operand for call_on_grid in calls for operand in call_on_grid.call.of("input") if len(operand.shape) > 1]
    largest = max(inputs, key=lambda operand: math.prod(operand.shape), default=None)
    return largest.dtype if largest is not None else None


def _digest(jaxpr: Any) -> str:
    """Return a short digest of a traced program, without addresses of this process' memory."""
    return hashlib.sha256(_ADDRESS.sub("", str(jaxpr)).encode()).hexdigest()[:32]


def _least_us(call: CallAnalysis, flops: float | None, dtype: str, chip: Chip) -> float:
    limits = Roofline(
        flops=flops or 0.0,
        hbm_bytes=call.moved_bytes or 0,
        peak_flops_per_s=chip.peak_ops_per_s(dtype if dtype in chip.dtypes else "bfloat16"),
        hbm_bytes_per_s=chip.machine.hbm_bytes_per_s,
    )
    return limits.least_us
