"""What to ask Google Cloud for: the smallest machine with a chip, and the software that belongs on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.chips import UnknownChipError, chip
from systolic.machines.machine import Address

# Accelerator types: the pages of each TPU version beneath https://cloud.google.com/tpu/docs/system-architecture-tpu-vm.
# v4 and v5p count cores, two a chip, and their smallest machine has four chips; v5e and v6e count chips, from one.
# Runtime versions: https://cloud.google.com/tpu/docs/runtimes, the ones for JAX.
_OFFERS = {
    "v4": ("v4-8", "tpu-ubuntu2204-base"),
    "v5e": ("v5litepod-1", "v2-alpha-tpuv5-lite"),
    "v5p": ("v5p-8", "v2-alpha-tpuv5"),
    "v6e": ("v6e-1", "v2-alpha-tpuv6e"),
}
_DEFAULT_CHIP = "v5e"
# https://cloud.google.com/tpu/docs/create-tpu-vm: "The Cloud TPU API is not supported on TPU7x and later TPU versions."
_WITHOUT_OFFER = {
    "v7x": "Google Cloud gives TPU7x by Compute Engine and GKE only, not by the Cloud TPU API that this command "
    "calls: make one as https://cloud.google.com/compute/docs/tpus says, and run systolic on it; "
    "if your project can make one here nonetheless, give --accelerator-type and --runtime-version",
}
# https://cloud.google.com/compute/docs/naming-resources
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


class MachineRequestError(ValueError):
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
    name = asked or of_type or ("" if accelerator_type else _DEFAULT_CHIP)
    if name not in _OFFERS and not (accelerator_type and runtime_version):
        raise MachineRequestError(
            _WITHOUT_OFFER.get(name)
            or f"what runs on accelerator type {accelerator_type} is not known: give --runtime-version too"
        )
    usual_type, usual_runtime = _OFFERS.get(name, ("", ""))
    return Order(
        address=where,
        accelerator_type=accelerator_type or usual_type,
        runtime_version=runtime_version or usual_runtime,
        spot=spot,
    )


def chip_of(accelerator_type: str) -> str:
    """The chip's name here of an accelerator type such as `v5litepod-4`; "" if it is not known."""
    try:
        return chip(accelerator_type.split("-")[0]).name
    except UnknownChipError:
        return ""
