"""Constants of a chip's model that were fitted to measured times: kept in a file, checked, and put in place.

A file holds what `systolic calibrate --out` writes, one JSON object: `chip`, `constants` (name → number), `fitted_on`
and `checked_on` (the programs of either half), and their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from systolic.chips.chip import Chip, MachineModel, SparseCoreModel
from systolic.chips.links import Links
from systolic.support.call_errors import WrongCallError
from systolic.support.choices import unknown_name
from systolic.support.untrusted import read_json_file, shown

_LARGEST = 1e18  # above every rate, in hertz and bytes a second
# They decide how a listing is read and what the compiler made: another value would need another program.
_OF_THE_PROGRAM = ("mxu_count", "mxu_rows", "mxu_columns", "branch_delay_slots")
_LINKS_OF_CHIP = (
    "dimensions",
    "wrap_extent",
    "wraps_alone",
    "signal_chip_bit",
    "copy_remote_bit",
    "route_entries",
)  # the same for links


class ConstantsError(WrongCallError, ValueError):
    """A file of constants that cannot be read, an unknown constant, an impossible value, or another chip's.

    Also a constant that cannot change once a program has been prepared.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstants:
    """Constants that were fitted for one chip, and the names of the programs that were in view."""

    chip: str
    constants: Mapping[str, float]
    fitted_on: tuple[str, ...]
    source: str  # where they are from, in a few words


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The range of a constant, both ends included."""

    least: float
    most: float


def fittable(chip: Chip) -> dict[str, Bounds]:
    """Return the constants of `chip.machine` that published times can determine, and their bounds.

    No copy engine beats the published bandwidth. The other bounds are generous: several times what any chip shows.
    """
    return {
        "clock_hz": Bounds(least=0.5 * chip.machine.clock_hz, most=1.5 * chip.machine.clock_hz),
        "hbm_bytes_per_s": Bounds(least=0.25 * chip.hbm_bytes_per_s, most=chip.hbm_bytes_per_s),
        "dma_latency_cycles": Bounds(least=0, most=5000),
        "dma_issue_cycles": Bounds(least=0, most=500),
        "dma_wait_cycles": Bounds(least=0, most=500),
        "hbm_run_cycles": Bounds(least=0, most=10),
        "weight_push_cycles": Bounds(least=0, most=8),
        "result_latency_cycles": Bounds(least=0, most=1000),
    }


def is_cycles(name: str) -> bool:
    """True if the constant counts whole cycles; some are fractions of one."""
    return next(field.type for field in fields(MachineModel) if field.name == name) == "int"


def with_constants(chip: Chip, fitted: FittedConstants) -> Chip:
    """Return the chip with these constants in place of its own, and their source in its table.

    Raises:
      ConstantsError: they are another chip's, a name that cannot be fitted, or a value that no hardware has: a rate
        that is not positive, cycles that are negative or no whole number.
    """
    if fitted.chip != chip.name:
        raise ConstantsError(f"{fitted.source}: the constants are of {fitted.chip}, not of {chip.name}")
    bounds = fittable(chip)
    machine: dict[str, Any] = {}
    for name, value in fitted.constants.items():
        if name not in bounds:
            raise ConstantsError(f"{fitted.source}: {unknown_name('constant', name, bounds)}")
        machine[name] = _checked(name, value, fitted.source)
    sources = {**chip.sources, **{f"machine.{name}": fitted.source for name in machine}}
    return replace(chip, machine=replace(chip.machine, **machine), sources=sources)


_SPARSE_COUNTS = ("cores_per_device", "tiles_per_core", "lanes")


def check_constants(machine: MachineModel, prepared_for: MachineModel) -> None:
    """Check that a program that was prepared for one machine model can run on another.

    Raises:
      ConstantsError: a constant that the program was read and compiled for has another value, there is no rate for a
        type of operands that had one, or a value is one that no hardware has.
    """
    if not isinstance(machine, MachineModel):
        raise ConstantsError(
            f"machine={shown(machine)} is not a `MachineModel`, such as `systolic.chip('v5e').machine`"
        )
    for name in _OF_THE_PROGRAM:
        prepared_value, machine_value = getattr(prepared_for, name), getattr(machine, name)
        if prepared_value != machine_value:
            raise ConstantsError(
                f"{name}={shown(machine_value)}: this program was compiled for {name}={prepared_value}, which cannot "
                "change; prepare it for a chip with another"
            )
    if missing := prepared_for.mxu_rows_per_cycle.keys() - machine.mxu_rows_per_cycle.keys():
        raise ConstantsError(f"mxu_rows_per_cycle has no rate for operands of {', '.join(sorted(missing))}")
    for field in fields(MachineModel):
        value = getattr(machine, field.name)
        for number in value.values() if isinstance(value, Mapping) else (value,):
            _check_possible(field.name, number, is_integer=field.type == "int")


def check_sparse_core(model: SparseCoreModel | None, prepared_for: SparseCoreModel | None) -> None:
    """Check constants of SparseCores against a chip with the same numbers of cores and tiles.

    Raises:
      ConstantsError: it has none, or others, or a value is one that no hardware has.
    """
    _check_equal(model, prepared_for, _SPARSE_COUNTS, "SparseCores")
    for field in fields(SparseCoreModel) if model is not None else ():
        _check_possible(field.name, getattr(model, field.name), is_integer=field.type == "int")


def check_links(links: Links | None, prepared_for: Links | None) -> None:
    """Check constants of links against a chip whose programs name other chips in the same way.

    Raises:
      ConstantsError: it has none, or others, or a value is one that no hardware has.
    """
    _check_equal(links, prepared_for, _LINKS_OF_CHIP, "links")
    for name in ("bytes_per_s", "hop_s", "die_bytes_per_s", "die_hop_s") if links is not None else ():
        value = getattr(links, name)
        if (value is None) != (getattr(prepared_for, name) is None):
            raise ConstantsError("its links are not those of the chip")
        if value is not None:
            _check_possible(name, value, is_integer=False)


def _check_equal(record: object, prepared_for: object, names: tuple[str, ...], what: str) -> None:
    if (record is None) != (prepared_for is None) or (
        record is not None and any(getattr(record, name) != getattr(prepared_for, name) for name in names)
    ):
        raise ConstantsError(f"its {what} are not those of the chip")


def _check_possible(name: str, value: Any, *, is_integer: bool) -> None:
    if type(value) not in ((int,) if is_integer else (int, float)) or not abs(value) <= _LARGEST:  # NaN neither
        raise ConstantsError(
            f"{name}={shown(value)} is not {'an integer' if is_integer else 'a number'} up to {_LARGEST:g}"
        )
    divides = "_per_" in name or name.endswith(("_hz", "_bytes", "_share"))
    if value < 0 or (divides and value == 0):
        raise ConstantsError(f"{name}={value} has to be {'above 0' if divides else '0 or more'}")


def _checked(name: str, value: Any, source: str) -> float:
    if type(value) not in (int, float) or not abs(value) < _LARGEST:  # NaN neither
        raise ConstantsError(f"{source}: {name}={shown(value)} is not a number below {_LARGEST:g}")
    if is_cycles(name):
        if value < 0 or value != int(value):
            raise ConstantsError(f"{source}: {name}={value}: cycles are whole numbers from 0 up")
        return int(value)
    if value < 0 or (value == 0 and not name.endswith("_cycles")):
        raise ConstantsError(
            f"{source}: {name}={value} has to be {'0 or more' if name.endswith('_cycles') else 'above 0'}"
        )
    return float(value)


def load_constants(path: Path) -> FittedConstants:
    """Read a file of constants, which `with_constants` checks against a chip; raise ConstantsError for other files."""
    data = read_json_file(path, ConstantsError)
    form = 'one JSON object with "chip" and "constants", as `systolic calibrate --out` writes'
    if not isinstance(data, dict):
        raise ConstantsError(f"{path} does not hold {form}")
    chip, constants, fitted_on = data.get("chip"), data.get("constants"), data.get("fitted_on", [])
    if not isinstance(chip, str) or not isinstance(constants, dict) or not constants:
        command = data.get("command")
        other = f" but is the result of `systolic {command[:40]}`" if isinstance(command, str) else ""
        raise ConstantsError(f"{path} does not hold {form}{other}")
    if not isinstance(fitted_on, list):
        raise ConstantsError(f"{path}: fitted_on={fitted_on!r} is not a list of programs")
    return FittedConstants(
        chip=chip, constants=constants, fitted_on=tuple(map(str, fitted_on)), source=f"constants of {path.name}"
    )
