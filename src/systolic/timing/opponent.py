"""The opponent in every comparison: XLA with its default flags, or with 64 MiB of scoped VMEM if that is faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from systolic.chips import Chip, with_flags
from systolic.cost import repeated_us
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome

# Public recipes for v6e and v7x raise the VMEM that an operation may use, most of them to 64 MiB.
MORE_VMEM_FLAGS = {"xla_tpu_scoped_vmem_limit_kib": "65536"}
MORE_VMEM_WORDS = "64 MiB of scoped VMEM"
_MORE_VMEM_BYTES = 65536 * 2**10


def with_more_vmem(chip: Chip) -> Chip | None:
    """Return the chip with 64 MiB of scoped VMEM; None if it has less VMEM, as much by default, or the flag already."""
    if MORE_VMEM_FLAGS.keys() & chip.compiler_flags.keys():
        return None
    if not chip.scoped_vmem_bytes < _MORE_VMEM_BYTES <= chip.vmem_bytes_per_core:
        return None
    return with_flags(chip, MORE_VMEM_FLAGS)


def xla_experiments(xla: Experiment, *, default_flags_only: bool = False) -> list[Experiment]:
    """Return XLA with the flags of its chip, and with 64 MiB of scoped VMEM: the faster is the opponent."""
    chip = None if default_flags_only else with_more_vmem(xla.chip)
    if chip is None:
        return [xla]
    return [xla, dataclasses.replace(xla, chip=chip, label=f"{xla.label}, {MORE_VMEM_WORDS}")]


def faster_xla(outcomes: Sequence[Outcome], least_hbm_us: float) -> Outcome:
    """Return the outcome with the shortest time in repeated calls; of equal times, or if none has one, the first.

    `least_hbm_us` is the shortest time in which the operands can cross HBM, for `cost.repeated_us`.
    """
    timed = [outcome for outcome in outcomes if outcome.run is not None and outcome.time_us is not None]
    return min(timed, key=lambda outcome: xla_repeated_us(outcome, least_hbm_us) or 0.0, default=outcomes[0])


def xla_repeated_us(outcome: Outcome, least_hbm_us: float) -> float | None:
    """Return XLA's time in repeated calls, in which a copy that it starts before a call is part of the previous one."""
    if outcome.run is None or outcome.time_us is None:
        return None
    return repeated_us(outcome.time_us, outcome.run.prefetch_us or 0.0, least_hbm_us)


def opponent_flags(outcome: Outcome, chip: Chip) -> dict[str, str]:
    """Return the compiler flags that the opponent ran with in addition to the chip's own."""
    flags = outcome.run.flags if outcome.run is not None else {}
    return {name: value for name, value in flags.items() if chip.compiler_flags.get(name) != value}


def opponent_words(flags: Mapping[str, str]) -> str:
    """Name the flags with which the opponent was faster, from those in addition to its defaults."""
    return f"with {MORE_VMEM_WORDS}" if flags else "with its default flags"
