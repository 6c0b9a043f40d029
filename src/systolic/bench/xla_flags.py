"""Compiler flags that people commonly give XLA: it is raced with and without them, and the better time counts."""

from __future__ import annotations

from systolic.chips import Chip, with_flags

# Public recipes for v6e and v7x raise what an operation may use of VMEM, most of them to this.
COMMON_FLAGS = {"xla_tpu_scoped_vmem_limit_kib": "65536"}
_LIMIT_BYTES = 65536 * 2**10


def with_common_flags(chip: Chip) -> Chip | None:
    """The chip as XLA's programs are commonly compiled for it; None where that is what they are anyway.

    So it is where the user gives such a flag, and where the chip has no more VMEM.
    """
    if COMMON_FLAGS.keys() & chip.compiler_flags.keys():
        return None
    if not chip.scoped_vmem_bytes < _LIMIT_BYTES <= chip.vmem_bytes_per_core:
        return None
    return with_flags(chip, COMMON_FLAGS)
