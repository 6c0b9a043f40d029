"""Rules on the surroundings of a Pallas call: copies that an index map would save, and missing hints for XLA."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from systolic.analysis import KernelCall, described
from systolic.checking.finding import Finding, call_finding
from systolic.chips import Chip
from systolic.compat.jaxpr_values import evaluate, unknown
from systolic.compat.jaxprs import functions_inside
from systolic.compiler import written_at
from systolic.spec import dtype_bytes

# Smaller copies are not worth reporting: HBM moves about a MB in a microsecond.
_WORTH_BYTES = 1 << 20

# Operations that cost a pass over HBM before a kernel, because XLA can't fuse them into its operands.
_COPIES = {
    "transpose": (
        "transposed-operand",
        "leave the array as it lies: swap the indices in its index map and contract the other dimension in "
        "lax.dot_general",
    ),
    "pad": ("padded-operand", "let the grid end in an edge block (pl.cdiv) and mask what is summed over"),
    "convert_element_type": ("cast-operand", "pass it unchanged and cast the block inside the kernel"),
}


def around_findings(closed_jaxpr: Any, calls: list[KernelCall], chip: Chip) -> list[Finding]:
    """Return the findings on the function around the calls, and on arguments that launchers leave out."""
    by_equation = {id(call.equation): call for call in calls}
    findings: list[Finding] = []

    def step(equation: Any, sources: list[Any]) -> list[Any]:
        """Return the equations that made the results: this one, or those inside of a function that it calls."""
        results: list[Any] = [equation] * len(equation.outvars)
        if equation.primitive.name == "pallas_call":
            call = by_equation[id(equation)]
            findings.extend(finding for source in sources if source is not None for finding in _copy(call, source))
            return results
        functions = functions_inside(equation)
        for function in functions:
            operands = sources if len(function.jaxpr.invars) == len(sources) else []
            results = evaluate(function, operands, step, literal=unknown, constant=unknown)
        return results if len(functions) < 2 else []

    evaluate(closed_jaxpr, [], step, literal=unknown, constant=unknown)
    for call in calls:
        findings += _untold(call, chip)
    return findings


def _copy(call: KernelCall, source: Any) -> Iterator[Finding]:
    rule_and_fix = _COPIES.get(source.primitive.name)
    if source.primitive.name == "convert_element_type" and source.invars[0].aval.dtype == source.outvars[0].aval.dtype:
        return  # only JAX's own bookkeeping of weak types
    if rule_and_fix is None or getattr(source.invars[0].aval, "ndim", 0) < 2:
        return
    made = source.outvars[0].aval
    moved = 2 * math.prod(made.shape) * dtype_bytes(str(made.dtype))
    if moved >= _WORTH_BYTES:
        rule, fix = rule_and_fix
        yield call_finding(
            call,
            rule,
            "warning",
            value=f"{source.primitive.name} before the kernel makes {described(made)}: {moved / 1e6:,.1f} MB "
            "through HBM",
            limit="XLA does not fuse it into a Pallas call: it is a separate copy before every call",
            fix=fix,
            where=written_at(source),
        )


def _untold(call: KernelCall, chip: Chip) -> Iterator[Finding]:
    if not call.has_cost_estimate:
        yield call_finding(
            call,
            "cost-estimate",
            "note",
            value="the call has no cost_estimate",
            limit="without one XLA takes the kernel for a small one, and schedules copies around it badly",
            fix="pass cost_estimate=pl.CostEstimate(flops=…, bytes_accessed=…, transcendentals=…)",
        )
    splits = any(axis_semantics in ("parallel", "core_parallel") for axis_semantics in call.semantics)
    if chip.cores_per_device > 1 and not splits and any(size is None or size > 1 for size in call.grid):
        yield call_finding(
            call,
            "one-core",
            "warning",
            value=f"no grid axis is parallel: one of the {chip.cores_per_device} cores of a {chip.name} idles",
            limit="only a parallel axis is divided among cores",
            fix='dimension_semantics=("parallel", …) on axes whose steps write different output blocks',
            chip=chip.name,
        )
