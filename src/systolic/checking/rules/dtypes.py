"""Rules on dtypes in a kernel's body: what the matrix unit multiplies, at which precision, and what else computes."""

from __future__ import annotations

from typing import Any

from systolic.analysis.body import body_equations
from systolic.analysis.calls import KernelCall
from systolic.checking.finding import Finding, Grade
from systolic.chips import Chip
from systolic.chips.arithmetic import EXACT_PASSES, UNLOADABLE, VECTOR_REFUSALS
from systolic.compiler import written_at


def dtype_findings(call: KernelCall, chip: Chip) -> list[Finding]:
    """Every finding about the dtypes that a kernel computes with, each at its line of the source."""
    findings = _unloadable(call, chip)
    for equation in body_equations(call.body):
        if equation.primitive.name == "dot_general":
            findings += _dot(call, equation, chip)
        else:
            findings += _narrow(call, equation, chip)
    return list(dict.fromkeys(findings))  # a branch that is written twice is one line of the source


def _finding(
    call: KernelCall, equation: Any, chip: Chip, rule: str, grade: Grade, *, value: str, limit: str, fix: str
) -> Finding:
    where = written_at(equation) or call.where
    return Finding(
        rule=rule, grade=grade, value=value, limit=limit, fix=fix, kernel=call.name, where=where, chip=chip.name
    )


def _dtype(atom: Any) -> str:
    return str(getattr(atom.aval, "dtype", ""))


def _unloadable(call: KernelCall, chip: Chip) -> list[Finding]:
    return [
        Finding(
            rule="array-dtype",
            grade="error",
            value=f"{operand.name} is {operand.dtype} in VMEM",
            limit=f"vector registers hold no {operand.dtype}: loading and storing it is refused on every chip",
            fix="use bfloat16 or float32",
            kernel=call.name,
            where=call.where,
            chip=chip.name,
        )
        for operand in call.operands
        if operand.dtype in UNLOADABLE and operand.memory == "vmem"
    ]


def _dot(call: KernelCall, equation: Any, chip: Chip) -> list[Finding]:
    lhs, rhs, total = _dtype(equation.invars[0]), _dtype(equation.invars[1]), _dtype(equation.outvars[0])
    if lhs in UNLOADABLE or rhs in UNLOADABLE:
        return []  # said of the operand
    what = f"a dot of {lhs} and {rhs} with {total} sums"
    names = _precisions(equation)
    if len(set(names)) > 1 or set(names) - {"DEFAULT", "HIGHEST"}:
        return [
            _finding(
                call,
                equation,
                chip,
                "precision",
                "error",
                value=f"{what} at Precision.{' and '.join(dict.fromkeys(names))}",
                limit="inside of a kernel there is DEFAULT and HIGHEST, for both operands alike",
                fix="use HIGHEST, or split float32 operands into bfloat16 terms by hand",
            )
        ]
    exact = "HIGHEST" in names
    reason = chip.dot_operands.refusal(lhs, rhs, total, exact=exact)
    if reason is not None:
        plainly = exact and chip.dot_operands.refusal(lhs, rhs, total, exact=False) is None
        return [
            _finding(
                call,
                equation,
                chip,
                "precision" if plainly else "dot-dtype",
                "error",
                value=f"{what}{' at HIGHEST' if exact else ''}",
                limit=f"the matrix unit of a {chip.name}: {reason}",
                fix="leave the precision out: it is exact for these operands" if plainly else _other(lhs, rhs, total),
            )
        ]
    if found := _one_row(call, equation, chip):
        return found
    return [*_emulated(call, equation, chip, (lhs, rhs)), *_one_pass(call, equation, chip, (lhs, rhs), exact=exact)]


def _one_row(call: KernelCall, equation: Any, chip: Chip) -> list[Finding]:
    """A product with one row, transposed: Pallas multiplies elementwise and sums, and does not convert as it should."""
    lhs, rhs = (atom.aval for atom in equation.invars)
    dimensions, _ = equation.params["dimension_numbers"]
    if tuple(map(tuple, dimensions)) != ((1,), (1,)) or len(lhs.shape) != 2 or rhs.shape[0] != 1:
        return []
    names = {str(lhs.dtype), str(rhs.dtype)}
    alike = lhs.shape == rhs.shape and str(equation.outvars[0].aval.dtype) == "float32"
    if names == {"float32"} or (alike and all("float" in name for name in names)):
        return []
    return [
        _finding(
            call,
            equation,
            chip,
            "dot-dtype",
            "error",
            value=f"a dot of {lhs.dtype}[{lhs.shape[0]},{lhs.shape[1]}] with one row of {rhs.dtype}",
            limit="Pallas multiplies one row elementwise, and fails at it unless both operands are float32",
            fix="convert both to float32, or give rhs more rows",
        )
    ]


def _precisions(equation: Any) -> tuple[str, ...]:
    given = equation.params.get("precision")
    both = given if isinstance(given, (tuple, list)) else (given,)
    return tuple("DEFAULT" if each is None else getattr(each, "name", str(each)) for each in both)


def _other(lhs: str, rhs: str, total: str) -> str:
    whole = "int" in lhs and "int" in rhs
    if whole and total == "float32":
        return "set preferred_element_type=jnp.int32, and convert the sum"
    if not whole and total != "float32":
        return "set preferred_element_type=jnp.float32, and convert the sum"
    return "convert the operands to bfloat16 before the dot"


def _emulated(call: KernelCall, equation: Any, chip: Chip, operands: tuple[str, str]) -> list[Finding]:
    found = [dtype for dtype in dict.fromkeys(operands) if dtype in chip.emulated_dtypes]
    if not found:
        return []
    return [
        _finding(
            call,
            equation,
            chip,
            "dot-dtype",
            "warning",
            value=f"a dot of {' and '.join(found)}",
            limit=f"a {chip.name} converts it to {chip.emulated_dtypes[found[0]]} first: it saves memory, not time",
            fix=f"use {' or '.join(chip.peak_ops_per_s_per_chip)} for speed",
        )
    ]


def _one_pass(call: KernelCall, equation: Any, chip: Chip, operands: tuple[str, str], *, exact: bool) -> list[Finding]:
    if exact or "float32" not in operands:
        return []
    partner = [dtype for dtype in operands if dtype != "float32"]
    if partner and chip.dot_operands.refusal(*operands, "float32", exact=True) is not None:
        fix = f"convert {partner[0]} to float32 and set Precision.HIGHEST"
    else:
        fix = "set precision=jax.lax.Precision.HIGHEST"
    return [
        _finding(
            call,
            equation,
            chip,
            "precision",
            "warning",
            value=f"a dot of {' and '.join(operands)} at default precision",
            limit="float32 operands are rounded to bfloat16 silently: one pass, about three digits",
            fix=f"{fix}, which takes {EXACT_PASSES} passes, or convert to bfloat16 and say so",
        )
    ]


def _narrow(call: KernelCall, equation: Any, chip: Chip) -> list[Finding]:
    operation = equation.primitive.name
    refused = VECTOR_REFUSALS.get(operation)
    if refused is None:
        return []
    for atom in equation.invars:
        dtype, shape = _dtype(atom), getattr(atom.aval, "shape", ())
        if dtype not in refused or not shape:  # scalars are computed by the scalar core
            continue
        wide = "float32" if "float" in dtype else "int32"
        return [
            _finding(
                call,
                equation,
                chip,
                "vector-dtype",
                "error",
                value=f"{operation} of {dtype}[{','.join(map(str, shape))}]",
                limit=f"vector units have no {operation} of {dtype} on any chip",
                fix=f"convert to {wide} before, and back after",
            )
        ]
    return []
