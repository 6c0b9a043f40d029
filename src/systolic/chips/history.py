"""What the simulator's constants were in earlier versions, for times that were kept then."""

from __future__ import annotations

# By chip: `machine_digest` of constants that give the times of 0.3.0. Those of the other chips have changed since.
_SINCE_0_3_0 = {"v4": "e6b129b6d2a05c94", "v5e": "ca1bc5469a4ef8ca", "v5p": "f030d43142b9ccfe"}
_OTHERS = "0.3.0"


def constants_of_0_3_0(chip_name: str) -> str:
    """Names the constants by which 0.3.0 simulated a chip, as `machine_digest` does where they still hold."""
    return _SINCE_0_3_0.get(chip_name, _OTHERS)
