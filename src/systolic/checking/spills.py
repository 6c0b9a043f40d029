"""VMEM for vector registers that do not fit, and for rearranging what does not lie in whole registers: an estimate.

A core has 64 vector registers of 8 × 128 words. Where a dot's result is added to something, its float32 sums live in
registers; of V registers of them, those above about 51 are kept in VMEM ("spilled"). Where the contraction has more
than two weight tiles, a bfloat16 lhs is kept beside them. A result that is stored as it comes spills nothing of itself.

The law and its constants were fitted to the accounts that libtpu 0.0.42.1 gave of 3,800 products on five chips, of
random tiles, dtypes and forms: on these the VMEM that a kernel takes is met within 5 % in 98 of 100 on v5e, v5p, v6e
and v7x, in 90 of 100 on v4, and in about 70 of 100 at HIGHEST. `benchmarks/check_configurations.py` checks it on other
kernels. Arithmetic around the dot is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from systolic.checking.body import body_equations
from systolic.checking.calls import KernelCall, Operand
from systolic.checking.folding import set_each_step
from systolic.checking.layout import REGISTER_BYTES, SUBLANES, array_tile_rows, element_bits, packing
from systolic.chips import Chip
from systolic.tiling.legality import LANES

_SUMS_IN_REGISTERS = 51  # of 64: the others hold operands
_NARROW_SUMS_IN_REGISTERS = 43  # where they are converted to 16 bits as they are added up
_BESIDE_HELD_LHS = 60  # registers for sums and lhs together, where the lhs is held
_V4_IN_REGISTERS = 19  # v4 computes with fewer: its vector unit has no bfloat16, so operands pass through float32
_REARRANGING_BYTES = 36 * 2**10  # "internal scratch" in the compiler's account


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    """A two-dimensional dot. Registers are of 32-bit words."""

    m: int
    k: int
    n: int
    lhs: str
    rhs: str
    is_exact: bool  # at Precision.HIGHEST
    is_added: bool  # the result is added to something before it is stored
    is_added_narrowly: bool
    has_transposed_rhs: bool

    @property
    def sums(self) -> int:
        """Registers of the result."""
        return _registers(self.m, self.n)


def _registers(rows: int, columns: int) -> int:
    return math.ceil(rows / SUBLANES) * math.ceil(columns / LANES)


def spill_bytes(call: KernelCall, chip: Chip) -> int:
    """Bytes of VMEM that a kernel takes besides its windows and scratch."""
    dots = [_dot_registers(dot, chip) for dot in _dots(call)]
    spilled = max([*dots, _converted_registers(call, chip)], default=0)
    return math.ceil(spilled) * REGISTER_BYTES + _rearranging_bytes(call, chip)


def _dots(call: KernelCall) -> Iterator[_Dot]:
    equations = list(body_equations(call.body))
    fresh = set_each_step(call)
    zeros = {each.outvars[0] for each in equations if each.primitive.name == "get" and each.invars[0] in fresh}
    readers: dict[Any, list[Any]] = {}
    for equation in equations:
        for atom in _variables(equation):
            readers.setdefault(atom, []).append(equation)
    for equation in equations:
        if equation.primitive.name != "dot_general":
            continue
        (lhs_dims, rhs_dims), (batch, _) = equation.params["dimension_numbers"]
        lhs, rhs = (atom.aval for atom in equation.invars)
        if len(lhs.shape) != 2 or len(rhs.shape) != 2 or batch or len(lhs_dims) != 1:
            continue
        added, narrow = _addition(equation.outvars[0], readers, zeros)
        yield _Dot(
            m=lhs.shape[1 - lhs_dims[0]],
            k=lhs.shape[lhs_dims[0]],
            n=rhs.shape[1 - rhs_dims[0]],
            lhs=str(lhs.dtype),
            rhs=str(rhs.dtype),
            is_exact="HIGHEST" in str(equation.params.get("precision")),
            is_added=added,
            is_added_narrowly=narrow,
            has_transposed_rhs=rhs_dims[0] == 1,
        )


def _addition(result: Any, readers: dict[Any, list[Any]], zeros: set[Any]) -> tuple[bool, bool]:
    """Whether a result is added to something, itself or converted, and whether in fewer than 32 bits.

    Args:
      result: of a dot.
      readers: the equations that use a variable.
      zeros: variables to which adding is none.
    """
    for equation in readers.get(result, []):
        name = equation.primitive.name
        if name in ("add", "add_any", "addupdate"):
            return zeros.isdisjoint(_variables(equation)), element_bits(str(result.aval.dtype)) < 32
        if name == "convert_element_type":
            found = _addition(equation.outvars[0], readers, zeros)
            if found[0]:
                return found
    return False, False


def _variables(equation: Any) -> list[Any]:
    return [atom for atom in equation.invars if not hasattr(atom, "val")]


def _dot_registers(dot: _Dot, chip: Chip) -> float:
    """Registers that one dot spills."""
    if chip.name == "v4":
        return max(0.0, _on_v4(dot))
    if dot.is_exact:
        return max(0.0, _exact(dot, chip))
    sums = dot.sums
    held = _held_lhs(dot, chip)
    if dot.is_added:
        room = _NARROW_SUMS_IN_REGISTERS if dot.is_added_narrowly else _SUMS_IN_REGISTERS
        return max(0.0, sums - room, sums + held - _BESIDE_HELD_LHS if held else 0.0)
    return _stored(dot, chip, held)


def _stored(dot: _Dot, chip: Chip, held: float) -> float:
    """Of a result that is stored as it comes, a strip is in the making at a time: what else spills is the lhs."""
    side, lhs = chip.machine.mxu_rows, _lhs_registers(dot)
    if dot.k <= 2 * side or "bfloat16" not in _computed_in(dot, chip):
        return 0.0
    if chip.name == "v7x":
        return max(0.0, lhs - 45.0) if dot.n > 2 * side else 0.0
    if not held:
        return 0.0
    if dot.k <= 4 * side:
        return max(0.0, lhs - 45 + 0.1 * min(dot.sums, 256))
    return max(0.0, held + min(dot.sums, 40) - _BESIDE_HELD_LHS)


def _held_lhs(dot: _Dot, chip: Chip) -> float:
    """Registers of a bfloat16 lhs that is kept from one strip of columns to the next while sums are added to.

    It is the more of it the more weight tiles the contraction has: none at two, all from six on. v7x adds up in the
    matrix unit and holds none.
    """
    side = chip.machine.mxu_rows
    if chip.name == "v7x" or dot.n <= side or "bfloat16" not in _computed_in(dot, chip):
        return 0.0
    return min(max((dot.k - 2 * side) / (4 * side), 0.0), 1.0) * _lhs_registers(dot)


def _lhs_registers(dot: _Dot) -> int:
    # An integer is converted through 32 bits; what is converted on the way into the matrix unit stays narrow.
    bits = 32 if "int" in dot.lhs else element_bits(dot.lhs)
    return math.ceil(dot.m * bits / (32 * SUBLANES)) * math.ceil(dot.k / LANES)


def _computed_in(dot: _Dot, chip: Chip) -> set[str]:
    """The dtypes that the matrix unit gets."""
    given = {dot.lhs, dot.rhs}
    if "float32" in given:
        return {"float32"}
    return {"bfloat16"} if len(given) > 1 else {chip.emulated_dtypes.get(dtype, dtype) for dtype in given}


def _exact(dot: _Dot, chip: Chip) -> float:
    """At HIGHEST both operands are split into three bfloat16 terms. Least squares, chip by chip."""
    lhs, rhs, sums = _registers(dot.m, dot.k), _registers(dot.k, dot.n), dot.sums
    narrow = dot.n <= chip.machine.mxu_columns
    if chip.name == "v7x":
        return 80 + 0.34 * sums + 0.48 * lhs + 0.22 * rhs
    if chip.name == "v6e":
        return -9 + 0.8 * sums + (1.25 if narrow else 3.72) * lhs + 0.47 * rhs
    return -17 + 0.86 * sums + (0.2 if narrow else 3.87) * lhs


# On v4 by how many weight tiles of 128 rows a bfloat16 contraction has; between them, as the next below.
_V4_BY_TILES = {1: 0.0, 2: 0.0, 3: 18.0, 4: 58.0, 8: 121.0, 16: 50.0}


def _on_v4(dot: _Dot) -> float:
    lhs, rhs, sums = _registers(dot.m, dot.k), _registers(dot.k, dot.n), dot.sums
    several = dot.n > LANES
    if dot.is_exact:
        return 15 + 0.83 * sums + (1.72 if several else 0.14) * lhs + 0.1 * rhs
    if "float32" in (dot.lhs, dot.rhs):
        return sums - _V4_IN_REGISTERS if dot.is_added else 0.0
    if "int" in dot.rhs:
        return -20 + 0.53 * lhs + rhs
    if "int" in dot.lhs:
        return -25 + lhs + 0.56 * rhs
    tiles = math.ceil(dot.k / LANES)
    beside = _V4_BY_TILES[max(each for each in _V4_BY_TILES if each <= tiles)]
    if tiles >= 8 and dot.m > 64 and several:
        return sums + _lhs_registers(dot) - 30
    living = sums if dot.is_added or tiles > 2 else 0
    return 0.94 * living - 14 + (beside if several and not dot.has_transposed_rhs else 0.0)


def _converted_registers(call: KernelCall, chip: Chip) -> float:
    """On v4 a block of eight-bit elements that is converted to words is converted as a whole before it is used."""
    if chip.name != "v4":
        return 0.0
    whole = [
        _registers(*equation.invars[0].aval.shape[-2:])
        for equation in body_equations(call.body)
        if equation.primitive.name == "convert_element_type"
        and len(getattr(equation.invars[0].aval, "shape", ())) > 1
        and element_bits(str(equation.invars[0].aval.dtype)) == 8
        and element_bits(str(equation.outvars[0].aval.dtype)) == 32
    ]
    return max(0, max(whole, default=0) - _V4_IN_REGISTERS)


def _rearranging_bytes(call: KernelCall, chip: Chip) -> int:
    """For arrays that lie in tiles of fewer rows than a register, which the older chips rearrange as they load them."""
    if chip.name not in ("v4", "v5e", "v5p"):
        return 0
    needs = any(_is_rearranged(operand, chip) for operand in call.of("input"))
    # v4 spreads a row over the rows of a register through VMEM, 128 lanes at a time.
    rows = [operand for operand in call.of("input") if _is_row(operand)] if chip.name == "v4" else []
    if all(_is_row(operand) for operand in call.of("output")):
        rows = []
    spread = sum(math.ceil(operand.block[-1] / LANES) for operand in rows)
    return spread * REGISTER_BYTES + (_REARRANGING_BYTES if needs else 0)


def _is_row(operand: Operand) -> bool:
    return operand.memory == "vmem" and len(operand.shape) > 1 and operand.block[-2] == 1


def _is_rearranged(operand: Operand, chip: Chip) -> bool:
    if operand.memory != "vmem" or not operand.shape:
        return False
    shared = packing(operand.dtype)
    if len(operand.shape) == 1:
        return chip.name == "v4" and shared > 1
    tile = array_tile_rows(operand.shape[-2], operand.dtype)
    if shared == 8:
        return tile == SUBLANES
    if tile >= SUBLANES:
        return False
    return operand.block[-2] > tile or (operand.block[-1] > LANES and (chip.name == "v4" or shared > 1))
