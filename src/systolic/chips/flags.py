"""Compiler flags that a user gives for a program, added to the chip that it is compiled for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from systolic.chips.chip import Chip
from systolic.support.call_errors import WrongCallError
from systolic.support.untrusted import shown

_NAME = re.compile(r"xla_\w+", re.ASCII)
_SCOPED_VMEM = "xla_tpu_scoped_vmem_limit_kib"
_VALUE = re.compile(r"[!-~]{1,1000}", re.ASCII)
# libtpu writes the listings that are simulated where these say: they are this package's own.
_RESERVED = re.compile(r"xla_(jf|mosaic|sc)_dump_\w*|xla_dump_\w*|xla_jf_hlo_deduplication_all_unique", re.ASCII)

FlagValue = str | int | float | bool


class FlagError(WrongCallError, ValueError):
    """An invalid compiler flag, or one that this package sets itself."""


def checked_flags(flags: Mapping[str, FlagValue]) -> dict[str, str]:
    """Return the flags as the compiler takes them: text, with True as `true` and 65536.0 as `65536`.

    The compiler itself checks names; `compiler/driver.py` finds how it spells a truth value.

    Raises:
      FlagError: a name or a value that no flag has, or a flag that says where listings go.
    """
    checked = {}
    for flag, value in flags.items():
        name = flag.removeprefix("--")
        if not _NAME.fullmatch(name):
            raise FlagError(f"{shown(flag)} is not a flag of the compiler, such as {_SCOPED_VMEM}")
        if _RESERVED.fullmatch(name):
            raise FlagError(f"compiler flag {name} says what the compiler leaves for systolic to read: leave it out")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, float) and value.is_integer():
            text = str(int(value))  # flags that count take no decimal point, and those that do not take it or leave it
        if not _VALUE.fullmatch(text):
            raise FlagError(f"compiler flag {name}={shown(text)}: a value is printable text without spaces")
        checked[name] = text
    return checked


def with_flags(chip: Chip, flags: Mapping[str, FlagValue] | None) -> Chip:
    """Return the chip with these compiler flags for every program, in addition to its clock state's.

    The limit of scoped VMEM is a field of a chip too, and changes with its flag.

    Raises:
      FlagError: see `checked_flags`; or a flag sets the clock to another state than the chip's.
    """
    checked = checked_flags(flags or {})
    clock_flags = {name: value for state in chip.clock_states for name, value in state.flags.items() if name in checked}
    for name in clock_flags:
        if checked[name] != chip.compiler_flags.get(name):
            states = ", ".join(f"{chip.generation}@{state.name}" for state in chip.clock_states)
            raise FlagError(
                f"compiler flag {name}={checked[name]} is not the clock state of {chip.name}: name the chip with its "
                f"state instead, one of {states}"
            )
    if not checked:
        return chip
    limit = checked.get(_SCOPED_VMEM, "")
    limit_bytes = int(limit) * 2**10 if limit.isdecimal() else chip.scoped_vmem_bytes
    return replace(
        chip,
        compiler_flags={**chip.compiler_flags, **checked},
        scoped_vmem_bytes=min(limit_bytes, chip.vmem_bytes_per_core),
    )


def flags_text(flags: Mapping[str, str]) -> str:
    """Return the flags in one line, as a command takes them; "" if there are none."""
    return " ".join(f"{name}={value}" for name, value in flags.items())
