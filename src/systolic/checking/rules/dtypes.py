"""Rules on dtypes in a kernel's body: what the matrix unit multiplies, at which precision, and what else computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from systolic.analysis import KernelCall, described
from systolic.checking.finding import Finding, call_finding
from systolic.chips import Chip
from systolic.chips.arithmetic import EXACT_PASSES, UNLOADABLE, VECTOR_REFUSALS
from systolic.compat.jaxprs import equations
from systolic.compiler import written_at

# Makes a finding at the line of an equation, for a chip.
_Found = Callable[..., Finding]


def dtype_findings(call: KernelCall, chip: Chip) -> list[Finding]:
    """Return the findings on the dtypes of a kernel's operations, with their source lines."""
    findings = list(_unloadable(call, chip))
    for equation in equations(call.body):
        finding = partial(call_finding, call, chip=chip.name, where=written_at(equation))
        rule = _dot if equation.primitive.name == "dot_general" else _vector
        findings += rule(equation, chip, finding)
    return list(dict.fromkeys(findings))  # a branch that is written twice is one line of the source


def _unloadable(call: KernelCall, chip: Chip) -> Iterator[Finding]:
    for operand in call.operands:
        if operand.dtype in UNLOADABLE and operand.memory == "vmem":
            yield call_finding(
                call,
                "array-dtype",
                value=f"{operand.name} is {operand.dtype} in VMEM",
                limit=f"vector registers hold no {operand.dtype}: loading and storing it is refused on every chip",
                fix="use bfloat16 or float32",
                chip=chip.name,
            )


def _dtype(atom: Any) -> str:
    return str(getattr(atom.aval, "dtype", ""))


def _dot(equation: Any, chip: Chip, finding: _Found) -> Iterator[Finding]:
    lhs, rhs, total = _dtype(equation.invars[0]), _dtype(equation.invars[1]), _dtype(equation.outvars[0])
    if lhs in UNLOADABLE or rhs in UNLOADABLE:
        return  # said of the operand
    what = f"a dot of {lhs} and {rhs} with {total} sums"
    names = _precisions(equation)
    exact = "HIGHEST" in names
    if len(set(names)) > 1 or set(names) - {"DEFAULT", "HIGHEST"}:
        yield finding(
            "precision",
            value=f"{what} at Precision.{' and '.join(dict.fromkeys(names))}",
            limit="inside of a kernel there is DEFAULT and HIGHEST, for both operands alike",
            fix="use HIGHEST, or split float32 operands into bfloat16 terms by hand",
        )
    elif (reason := chip.dot_operands.refusal(lhs, rhs, total, exact=exact)) is not None:
        plainly = exact and chip.dot_operands.refusal(lhs, rhs, total, exact=False) is None
        yield finding(
            "precision" if plainly else "dot-dtype",
            value=f"{what}{' at HIGHEST' if exact else ''}",
            limit=f"the matrix unit of a {chip.name}: {reason}",
            fix="leave the precision out: it is exact for these operands" if plainly else _other(lhs, rhs, total),
        )
    elif _is_refused_row(equation):
        lhs_aval, rhs_aval = (atom.aval for atom in equation.invars)
        yield finding(
            "dot-dtype",
            value=f"a dot of {described(lhs_aval)} with one row of {rhs_aval.dtype}",
            limit="Pallas multiplies one row elementwise, and fails at it unless both operands are float32",
            fix="convert both to float32, or give rhs more rows",
        )
    else:
        yield from _emulated(chip, finding, (lhs, rhs))
        yield from _one_pass(chip, finding, (lhs, rhs), exact=exact)


def _is_refused_row(equation: Any) -> bool:
    """Find products with one row, transposed: Pallas multiplies elementwise, sums, and does not convert well."""
    lhs, rhs = (atom.aval for atom in equation.invars)
    dimensions, _ = equation.params["dimension_numbers"]
    if tuple(map(tuple, dimensions)) != ((1,), (1,)) or len(lhs.shape) != 2 or rhs.shape[0] != 1:
        return False
    names = {str(lhs.dtype), str(rhs.dtype)}
    alike = lhs.shape == rhs.shape and str(equation.outvars[0].aval.dtype) == "float32"
    return names != {"float32"} and not (alike and all("float" in name for name in names))


def _precisions(equation: Any) -> tuple[str, ...]:
    precision = equation.params.get("precision")
    both = precision if isinstance(precision, (tuple, list)) else (precision,)
    return tuple(
        "DEFAULT" if operand_precision is None else getattr(operand_precision, "name", str(operand_precision))
        for operand_precision in both
    )


def _other(lhs: str, rhs: str, total: str) -> str:
    is_integer = "int" in lhs and "int" in rhs
    if is_integer and total == "float32":
        return "set preferred_element_type=jnp.int32, and convert the sum"
    if not is_integer and total != "float32":
        return "set preferred_element_type=jnp.float32, and convert the sum"
    return "convert the operands to bfloat16 before the dot"


def _emulated(chip: Chip, finding: _Found, operands: tuple[str, str]) -> Iterator[Finding]:
    emulated = [dtype for dtype in dict.fromkeys(operands) if dtype in chip.emulated_dtypes]
    if emulated:
        yield finding(
            "dot-dtype",
            "warning",
            value=f"a dot of {' and '.join(emulated)}",
            limit=f"a {chip.name} converts it to {chip.emulated_dtypes[emulated[0]]} first: it saves memory, not time",
            fix=f"use {' or '.join(chip.peak_ops_per_s_per_chip)} for speed",
        )


def _one_pass(chip: Chip, finding: _Found, operands: tuple[str, str], *, exact: bool) -> Iterator[Finding]:
    if exact or "float32" not in operands:
        return
    partner = [dtype for dtype in operands if dtype != "float32"]
    if partner and chip.dot_operands.refusal(*operands, "float32", exact=True) is not None:
        fix = f"convert {partner[0]} to float32 and set Precision.HIGHEST"
    else:
        fix = "set precision=jax.lax.Precision.HIGHEST"
    yield finding(
        "precision",
        "warning",
        value=f"a dot of {' and '.join(operands)} at default precision",
        limit="float32 operands are rounded to bfloat16 silently: one pass, about three digits",
        fix=f"{fix}, which takes {EXACT_PASSES} passes, or convert to bfloat16 and say so",
    )


def _vector(equation: Any, chip: Chip, finding: _Found) -> Iterator[Finding]:
    del chip  # alike on all of them
    operation = equation.primitive.name
    refused = VECTOR_REFUSALS.get(operation, ())
    # Scalars are computed by the scalar core.
    arrays = [atom.aval for atom in equation.invars if getattr(atom.aval, "shape", ()) and _dtype(atom) in refused]
    if arrays:
        dtype = str(arrays[0].dtype)
        yield finding(
            "vector-dtype",
            value=f"{operation} of {described(arrays[0])}",
            limit=f"vector units have no {operation} of {dtype} on any chip",
            fix=f"convert to {'float32' if 'float' in dtype else 'int32'} before, and back after",
        )
