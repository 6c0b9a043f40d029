"""The smallest machine with a chip, and the software that belongs on it."""

from __future__ import annotations

from systolic.chips import DEFAULT_CHIP, CloudOffer, UnknownChipError, chip
from systolic.cloud.errors import TpuCallError
from systolic.cloud.gcloud import Address, Line, line


def create_line(where: Address, *, chip_name: str, accelerator_type: str, runtime_version: str, spot: bool) -> Line:
    """Return the command line that makes a machine; "" follows from the other values, or from the default chip."""
    requested, of_type = chip(chip_name).name if chip_name else "", _chip_of(accelerator_type)
    if requested and of_type and requested != of_type:
        raise TpuCallError(
            f"--chip {requested} and --accelerator-type {accelerator_type}, which has {of_type}, disagree: drop one"
        )
    if not (accelerator_type and runtime_version):
        name = requested or of_type or ("" if accelerator_type else DEFAULT_CHIP)
        if not name:
            raise TpuCallError(f"--accelerator-type {accelerator_type} is not known: add --runtime-version")
        offer = chip(name).cloud
        if not isinstance(offer, CloudOffer):
            raise TpuCallError(
                f"{offer.reason} that this command calls: make one as {offer.instructions_url} says, or add "
                "--accelerator-type and --runtime-version"
            )
        accelerator_type = accelerator_type or offer.accelerator_type
        runtime_version = runtime_version or offer.runtime_version
    types = (f"--accelerator-type={accelerator_type}", f"--version={runtime_version}")
    return line("create", where, *types, *(("--spot",) if spot else ()))


def _chip_of(accelerator_type: str) -> str:
    """Return the name of the chip of a type such as `v5litepod-4`; "" if it is not known."""
    try:
        return chip(accelerator_type.split("-")[0]).name
    except UnknownChipError:
        return ""
