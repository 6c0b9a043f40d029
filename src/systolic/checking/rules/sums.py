"""Rules on running sums in a kernel's body: the dtype of the sum, and the dtype of its parts.

A value is followed from its load, through additions and operations that preserve a sum, to its store. If it comes back
to the memory that it was loaded from, or to its place among the values that a loop carries, it is a running sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from systolic.analysis import PREFETCHED, KernelCall, index_axes
from systolic.checking.finding import Finding, call_finding
from systolic.checking.rounding import is_narrow
from systolic.compat.jaxpr_values import calls_inside, evaluate, scan_parts, while_parts
from systolic.compat.jaxprs import CALLS
from systolic.compiler import written_at

_ADDITIONS = frozenset(("add", "sub", "add_any"))
_KEEP = _ADDITIONS | frozenset(
    ("mul", "div", "select_n", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "transpose", "neg")
)
_PARTS = frozenset(("dot_general", "reduce_sum"))


class _Place(NamedTuple):
    """A parameter of the kernel, or a value that a loop carries."""

    loop: int  # 0: the kernel itself
    number: int


class _Value(NamedTuple):
    """Facts about a value of the body.

    Attributes:
      reference: the parameter that it refers to; None: it is not a reference.
      loaded: the places whose contents it is made of.
      added: something was added to these.
      is_part: it is made of the sum of an operation.
      coarse: the operation after which such a sum was rounded to a narrow type.
    """

    reference: _Place | None = None
    loaded: frozenset[_Place] = frozenset()
    added: bool = False
    is_part: bool = False
    coarse: Any = None


def sum_findings(call: KernelCall) -> list[Finding]:
    """Find running sums in narrow types, and running sums of parts that were rounded to one."""
    return list(dict.fromkeys(_Walk(call).findings))


def sums_narrowly(call: KernelCall) -> bool:
    """True if a running sum of the body is kept in a narrow type."""
    return _Walk(call).has_narrow_sum


class _Walk:
    """Follow the values of a body, and collect its findings."""

    def __init__(self, call: KernelCall) -> None:
        self._call = call
        self._loops = 0
        self._depth = 0
        self.findings: list[Finding] = []
        self.has_narrow_sum = False
        self._run(call.body, [_Value(reference=_Place(0, number)) for number in range(len(call.body.invars))])

    def _run(self, function: Any, values: Sequence[_Value]) -> list[_Value]:
        unknown = {"literal": lambda _: _Value(), "constant": lambda _: _Value(), "missing": _Value()}
        return evaluate(function, values, self.step, **unknown)

    def step(self, equation: Any, inputs: Sequence[_Value | None]) -> list[_Value]:
        values = [value or _Value() for value in inputs]
        name = equation.primitive.name
        if name in ("scan", "while"):
            return self._loop(equation, values)
        if name in ("get", "masked_load") and values[0].reference is not None:
            return [_Value(loaded=frozenset([values[0].reference]))]
        if name in ("swap", "masked_swap", "addupdate") and values[0].reference is not None:
            stored = values[1]
            if name == "addupdate":
                stored = stored._replace(loaded=stored.loaded | {values[0].reference}, added=True)
            self._stored(equation, values[0].reference, stored)
            return [_Value()] * len(equation.outvars)
        results = [_Value()] * len(equation.outvars)
        for function, operands in calls_inside(equation, values):
            inside = self._run(function, operands)
            if name in CALLS and len(inside) == len(results):
                results = inside
        if name in CALLS or not equation.outvars:
            return results
        return [self._computed(equation, values)] * len(equation.outvars)

    def _computed(self, equation: Any, values: Sequence[_Value]) -> _Value:
        name, result = equation.primitive.name, str(getattr(equation.outvars[0].aval, "dtype", ""))
        if name in _PARTS:
            return _Value(is_part=True, coarse=equation if is_narrow(result) else None)
        if name not in _KEEP:
            return _Value()
        is_part = any(value.is_part for value in values)
        coarse = next((value.coarse for value in values if value.coarse is not None), None)
        if name == "convert_element_type" and is_part and coarse is None and is_narrow(result):
            coarse = equation
        loaded = frozenset[_Place]().union(*(value.loaded for value in values))
        return _Value(
            loaded=loaded,
            added=any(value.added for value in values) or (name in _ADDITIONS and bool(loaded)),
            is_part=is_part,
            coarse=coarse,
        )

    def _loop(self, equation: Any, values: list[_Value]) -> list[_Value]:
        self._loops += 1
        self._depth += 1
        loop = self._loops
        sliced: list[_Value] = []
        if equation.primitive.name == "scan":
            parts = scan_parts(equation, values)
            constants, sliced = parts.constants, parts.sliced
        else:
            parts = while_parts(equation, values)
            constants = parts.body_constants
        carried = [
            value if value.reference is not None else _Value(loaded=frozenset([_Place(loop, number)]))
            for number, value in enumerate(parts.carried)
        ]
        results = self._run(parts.body, [*constants, *carried, *sliced])
        for number, result in enumerate(results[: len(carried)]):
            self._stored(equation, _Place(loop, number), result, str(equation.outvars[number].aval.dtype))
        self._depth -= 1
        return [_Value(is_part=result.is_part, coarse=result.coarse) for result in results]

    def _stored(self, equation: Any, place: _Place, value: _Value, dtype: str = "") -> None:
        if place not in value.loaded or not value.added:
            return
        operand = None if place.loop else self._call.operands[place.number]
        if operand is not None and not (self._depth or _is_carried(self._call, place.number)):
            return
        dtype = operand.dtype if operand is not None else dtype
        what = operand.name if operand is not None else "a value that a loop carries"
        if is_narrow(dtype):
            self.has_narrow_sum = True
            self.findings += self._finding(equation, f"{what} adds up in {dtype}", "the sum is rounded at every step")
        elif value.coarse is not None and "float32" in dtype:
            narrow = str(value.coarse.outvars[0].aval.dtype)
            self.findings += self._finding(
                value.coarse, f"the parts that {what} adds up are rounded to {narrow}", "each part loses digits first"
            )

    def _finding(self, equation: Any, value: str, limit: str) -> Iterator[Finding]:
        yield call_finding(
            self._call,
            "precision",
            "warning",
            value=value,
            limit=f"{limit}: errors grow with the number of steps",
            fix="set preferred_element_type=jnp.float32, keep the sum in float32, and round once at the end",
            where=written_at(equation),
        )


def _is_carried(call: KernelCall, number: int) -> bool:
    """True if a parameter's memory holds at some step what the step before has left there."""
    operand = call.operands[number]
    if operand.role not in ("scratch", "output"):
        return False
    moving = () if operand.role == "scratch" else index_axes(call, operand)
    return PREFETCHED not in moving and any(length != 1 and axis not in moving for axis, length in enumerate(call.grid))
