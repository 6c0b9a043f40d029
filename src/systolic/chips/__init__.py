"""The hardware: every TPU generation that systolic knows, each number with its source.

Facts of only one generation are in its file here, and in no other file of the package.
"""

from systolic.chips.chip import (
    Chip,
    ClockState,
    CloudOffer,
    CodeCosts,
    MachineModel,
    NotOffered,
    SparseCoreModel,
    StepEstimate,
    UnknownChipError,
    UnsupportedDtypeError,
)
from systolic.chips.flags import FlagError, FlagValue, checked_flags, flags_text, with_flags
from systolic.chips.links import Links
from systolic.chips.roofline_chip import ROOFLINE_CHIPS, RooflineChip, known_roofline_chip
from systolic.chips.slice_shape import SliceDevice, SliceError, SliceShape
from systolic.chips.v4 import V4
from systolic.chips.v5e import V5E
from systolic.chips.v5p import V5P
from systolic.chips.v6e import V6E
from systolic.chips.v7x import V7X
from systolic.support.choices import unknown_name

DEFAULT_CHIP = "v5e"  # the default of commands and functions
CHIPS = {chip.name: chip for chip in (V4, V5E, V5P, V6E, V7X)}


class ChipNameError(ValueError):
    """The name is not valid for a chip, or another one has it."""


def chip(name: str | Chip) -> Chip:
    """Return the chip of a name or alias, such as `"v5e"` or `"trillium"`, or of a clock state, such as `"v7x@p7"`.

    A record is returned as it is: functions with an argument `chip` take either.

    Raises:
      UnknownChipError: no such chip, or it has no such state; the message names those there are.
    """
    if isinstance(name, Chip):
        return name
    key, at, state = name.strip().lower().partition("@")
    chip_of_name = next(
        (candidate for candidate in CHIPS.values() if key in (candidate.name, *candidate.aliases)), None
    )
    if chip_of_name is None:
        if (announced := known_roofline_chip(key)) is not None:
            raise UnknownChipError(announced.no_target)
        raise UnknownChipError(unknown_name("chip", name, CHIPS, aliases=[*chip_names(), *_aliases()]))
    return chip_of_name.in_clock_state(state) if at else chip_of_name


def chip_names() -> list[str]:
    """Return the names of all chips, in each of their clock states."""
    return [
        chip_record.name if state is None else chip_record.in_clock_state(state.name).name
        for chip_record in CHIPS.values()
        for state in chip_record.clock_states or (None,)
    ]


def _aliases() -> list[str]:
    return [alias for chip_record in CHIPS.values() for alias in chip_record.aliases]


def known_chip(name: str) -> Chip | None:
    """Return the chip of that name, or None: saved results may name any chip."""
    try:
        return chip(name)
    except UnknownChipError:
        return None


def with_clock_state(name: str) -> str:
    """Return a chip's name, followed by its clock state even if that is the default one."""
    chip_record = known_chip(name)
    default = None if chip_record is None or "@" in name else chip_record.clock_state
    return name if default is None else f"{name} (clock state {default.name}, the default)"


def register(chip: Chip) -> Chip:
    """Make a chip known by its name and aliases to this process, like the chips with a file here.

    Functions that take a chip take the record too, registered or not. Worker processes get records; a function
    that looks a name up while it is traced in a worker finds only chips that have a file.

    Returns:
      The chip.

    Raises:
      ChipNameError: a name that `chip` would not find, or one that another chip has.
    """
    for name in (chip.name, *chip.aliases):
        if not name or name != name.strip().lower() or set(",@") & set(name):
            raise ChipNameError(f"a chip named {name!r}: names are in lower case, without commas, @ and outer spaces")
        other = next((candidate for candidate in CHIPS.values() if name in (candidate.name, *candidate.aliases)), None)
        if other is not None:
            raise ChipNameError(f"{name!r} is a name of {other.title}: give the new chip a name and aliases of its own")
    CHIPS[chip.name] = chip
    return chip


__all__ = [
    "CHIPS",
    "DEFAULT_CHIP",
    "ROOFLINE_CHIPS",
    "Chip",
    "ChipNameError",
    "ClockState",
    "CloudOffer",
    "CodeCosts",
    "FlagError",
    "FlagValue",
    "Links",
    "MachineModel",
    "NotOffered",
    "RooflineChip",
    "SliceDevice",
    "SliceError",
    "SliceShape",
    "SparseCoreModel",
    "StepEstimate",
    "UnknownChipError",
    "UnsupportedDtypeError",
    "checked_flags",
    "chip",
    "chip_names",
    "flags_text",
    "known_chip",
    "register",
    "with_clock_state",
    "with_flags",
]
