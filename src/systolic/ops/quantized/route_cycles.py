"""The time for which a route keeps a core busy, by its matrix units and its vector units."""

from __future__ import annotations

from systolic.chips import Chip, MachineModel
from systolic.ops.quantized.route import Route
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES, REGISTER_BYTES
from systolic.spec import dtype_bytes, format_bytes

# Names of operand types in the listings of the compiler, whose rates the machine models know.
ROWS_TYPES = {"bfloat16": "bf16", "int8": "s8", "int4": "s4", "float8_e4m3fn": "f8", "float8_e5m2": "f8"}
_MIN_ROWS = 16  # of bfloat16, that go through a unit at once
_VECTOR_SLOTS = 4
# Counted in listings of libtpu 0.0.42.1 for products of 16 to 128 rows.
# Operations on a register of pushed weights: to unpack it and to place the bits of a code; to cast it, or to make
# bfloat16 of it by way of float32 where vector units have none; to multiply it by its scale, as well.
_CODE_OPERATIONS = {"int4": 3, "float4_e2m1fn": 5}
_CAST_OPERATIONS, _CAST_BY_FLOAT32_OPERATIONS = 1, 5
_SCALE_OPERATIONS, _SCALE_IN_FLOAT32_OPERATIONS = 1, 7
# Operations on a register of sums: to scale and add it, and to subtract the offset of the weights.
_SUM_OPERATIONS, _OFFSET_OPERATIONS = 2, 1
_EVEN_FIRST_OPERATIONS = 2
_NOT_BESIDE = 0.2  # share of the shorter of both that does not overlap with the longer one, at a guess


def route_cycles(route: Route, spec: QuantizedSpec, rows: int, k: int, n: int, chip: Chip) -> float:
    """Return the cycles of a core for the rows, k and n of a product, without copies and surrounding code."""
    units, vector = unit_cycles(route, rows, k, n, chip), vector_cycles(route, spec, rows, k, n, chip)
    return max(units, vector) + _NOT_BESIDE * min(units, vector)


def unit_cycles(route: Route, rows: int, k: int, n: int, chip: Chip) -> float:
    machine = chip.machine
    unit_rows, unit_columns = unit_shape(route.pushed, machine)
    deep = min(route.depth, unit_rows)
    tiles = k / deep * -(-n // unit_columns) / machine.mxu_count
    pushes = format_bytes(route.pushed, deep * unit_columns) / REGISTER_BYTES / max(unit_columns // LANES, 1)
    taken = max(rows, _MIN_ROWS) / rows_per_cycle(route, chip)
    return tiles * max(taken + pushes * machine.weight_push_cycles, pushes * chip.code_costs.push_bundles)


def vector_cycles(route: Route, spec: QuantizedSpec, rows: int, k: int, n: int, chip: Chip) -> float:
    operations = k * n * dtype_bytes(route.pushed) / REGISTER_BYTES * _made_operations(route, spec, chip)
    vector = operations / _VECTOR_SLOTS
    if route.scaled == "sums" and spec.blocks > 1:
        row_operations = _SUM_OPERATIONS + (_OFFSET_OPERATIONS if route.offset else 0)
        vector += k / spec.block * max(rows, 8) * n / 1024 * row_operations / _VECTOR_SLOTS
    return vector + (k * n / 1024 * chip.code_costs.bits_register_cycles if route.made == "bits" else 0)


def _made_operations(route: Route, spec: QuantizedSpec, chip: Chip) -> int:
    """Return the operations on a register of pushed weights, once for all rows that meet it."""
    by_float32 = route.pushed == "bfloat16" and not chip.vector_bfloat16
    operations = 0
    if route.made in ("codes", "cast codes"):
        operations += _EVEN_FIRST_OPERATIONS if route.even_first else _CODE_OPERATIONS[spec.dtype_rhs]
    if route.made in ("cast", "cast codes"):
        operations += _CAST_BY_FLOAT32_OPERATIONS if by_float32 else _CAST_OPERATIONS
    if route.scaled == "weights":
        operations += _SCALE_IN_FLOAT32_OPERATIONS if by_float32 else _SCALE_OPERATIONS
    return operations


def rows_per_cycle(route: Route, chip: Chip) -> float:
    return chip.machine.mxu_rows_per_cycle[ROWS_TYPES[route.rows]]


def unit_shape(pushed: str, machine: MachineModel) -> tuple[int, int]:
    """Return the rows and columns of the weights that a unit holds; for int4 twice the rows and half the columns.

    Source: listings of libtpu 0.0.42.1: 64 rows of int4 times 512 × 128 weights on v6e, 256 × 64 on v5e.
    """
    return (
        (2 * machine.mxu_rows, machine.mxu_columns // 2)
        if pushed == "int4"
        else (machine.mxu_rows, machine.mxu_columns)
    )
