"""What the hardware is: every TPU generation that systolic knows, each number with its source."""

from systolic.chips.chip import Chip, MachineModel, UnknownChipError, UnsupportedDtypeError
from systolic.chips.v4 import V4
from systolic.chips.v5e import V5E
from systolic.chips.v5p import V5P
from systolic.chips.v6e import V6E
from systolic.chips.v7x import V7X

CHIPS = {chip.name: chip for chip in (V4, V5E, V5P, V6E, V7X)}

_ALSO_CALLED = {"tpu7x": "v7x", "ironwood": "v7x", "trillium": "v6e", "v5litepod": "v5e"}


def chip(name: str) -> Chip:
    """The chip of that name, such as `"v5e"`.

    Raises:
      UnknownChipError: no such chip; the message names those there are.
    """
    key = name.strip().lower()
    key = _ALSO_CALLED.get(key, key)
    if key not in CHIPS:
        raise UnknownChipError(f"chip {name!r} is not known; known are {', '.join(CHIPS)}")
    return CHIPS[key]


__all__ = ["CHIPS", "Chip", "MachineModel", "UnknownChipError", "UnsupportedDtypeError", "chip"]
