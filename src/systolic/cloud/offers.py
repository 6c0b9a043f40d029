"""What to ask Google Cloud for: the smallest machine with a chip, and the software that belongs on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.call_errors import WrongCallError
from systolic.chips import CloudOffer, UnknownChipError, chip
from systolic.cloud.machine import Address

_DEFAULT_CHIP = "v5e"
# https://cloud.google.com/compute/docs/naming-resources
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


class MachineRequestError(WrongCallError, ValueError):
    """Such a machine cannot be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A machine to be made."""

    address: Address
    accelerator_type: str
    runtime_version: str
    spot: bool = False


def address(name: str, zone: str = "", project: str = "") -> Address:
    """Where a machine is, or is to be.

    Raises:
      MachineRequestError: no machine can have that name.
    """
    if not _NAME.fullmatch(name):
        raise MachineRequestError(
            f"{name!r} is no name of a machine: it has up to 63 lower-case letters, digits and hyphens, begins with a "
            "letter and does not end with a hyphen, such as my-tpu"
        )
    return Address(name=name, zone=zone, project=project)


def order(
    where: Address,
    *,
    chip_name: str = "",
    accelerator_type: str = "",
    runtime_version: str = "",
    spot: bool = False,
) -> Order:
    """What to ask for: whatever is "" follows from what is given.

    Args:
      chip_name: as `systolic.chip` takes it; "" for that of the accelerator type, else v5e.
      accelerator_type: such as `v6e-4`; "" for the smallest with that chip.
      runtime_version: of the machine's software; "" for the one that Google names for JAX on that chip.

    Raises:
      MachineRequestError: chip and accelerator type disagree, or it is not known what to ask for.
      UnknownChipError: no such chip.
    """
    asked = chip(chip_name).name if chip_name else ""
    of_type = chip_of(accelerator_type) if accelerator_type else ""
    if asked and of_type and asked != of_type:
        raise MachineRequestError(
            f"--chip {asked} and --accelerator-type {accelerator_type}, which has {of_type}, disagree: leave one out"
        )
    if not (accelerator_type and runtime_version):
        usual = _offer(asked or of_type or ("" if accelerator_type else _DEFAULT_CHIP), accelerator_type)
        accelerator_type = accelerator_type or usual.accelerator_type
        runtime_version = runtime_version or usual.runtime_version
    return Order(address=where, accelerator_type=accelerator_type, runtime_version=runtime_version, spot=spot)


def _offer(chip_name: str, accelerator_type: str) -> CloudOffer:
    if not chip_name:
        raise MachineRequestError(
            f"what runs on accelerator type {accelerator_type} is not known: give --runtime-version too"
        )
    cloud = chip(chip_name).cloud
    if isinstance(cloud, CloudOffer):
        return cloud
    raise MachineRequestError(
        f"{cloud.reason} that this command calls: make one as {cloud.instructions_url} says, and run systolic on it; "
        "if your project can make one here nonetheless, give --accelerator-type and --runtime-version"
    )


def chip_of(accelerator_type: str) -> str:
    """The chip's name here of an accelerator type such as `v5litepod-4`; "" if it is not known."""
    try:
        return chip(accelerator_type.split("-")[0]).name
    except UnknownChipError:
        return ""
