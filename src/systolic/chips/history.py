"""What the simulator's constants were in earlier versions, for times that were kept then."""

from __future__ import annotations

# By chip: `machine_digest` of constants that give the times of 0.3.0. Those of v6e and v7x have changed since; on
# v5e and v5p rates of int4 have come, of which 0.3.0 had no times.
_SINCE_0_3_0 = {"v4": "e6b129b6d2a05c94", "v5e": "e6866fa902d9498d", "v5p": "d0f5fead77f4a5fe"}
_OTHERS = "0.3.0"


def constants_of_0_3_0(chip_name: str) -> str:
    """Names the constants by which 0.3.0 simulated a chip, as `machine_digest` does where they still hold."""
    return _SINCE_0_3_0.get(chip_name, _OTHERS)
