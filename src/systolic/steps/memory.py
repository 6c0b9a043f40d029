"""Compare a step's memory with HBM, by the compiler's own account, and suggest changes that make it fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from systolic.chips import Chip
from systolic.compiler import CompiledProgram, CompilerError, CompilerRefusal
from systolic.simulator import TopLevelHlo, array_bytes
from systolic.steps.records import GIB, StepMemory

_HBM = ("memory space hbm", "on HBM", "of HBM", " hbm")


class DoesNotFitError(CompilerError):
    """A step needs more HBM than a device has.

    Attributes:
      needed_bytes: the compiler's request.
      available_bytes: HBM of a device.
      argument_bytes: one device's part of the arguments: state and inputs.
    """

    def __init__(self, needed_bytes: int, available_bytes: int, argument_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.argument_bytes = argument_bytes
        super().__init__(needed_bytes, available_bytes, argument_bytes)

    def __str__(self) -> str:
        needed, available, arguments = (
            size_bytes / GIB for size_bytes in (self.needed_bytes, self.available_bytes, self.argument_bytes)
        )
        return (
            f"the step does not fit HBM by {needed - available:,.2f} GiB: it needs {needed:,.2f} GiB of "
            f"{available:,.2f} GiB, {arguments:,.2f} GiB of that for its arguments; {self.advice}"
        )

    @property
    def advice(self) -> str:
        """Suggestions to make the step fit."""
        if self.argument_bytes > self.available_bytes:
            times = math.ceil(self.argument_bytes / self.available_bytes)
            return f"cut the state over {times} times as many devices, or keep it in a smaller type"
        free, used = self.available_bytes - self.argument_bytes, self.needed_bytes - self.argument_bytes
        return (
            f"temporaries have to shrink to {free / used:.0%}: fewer sequences a device, or keep less for the backward "
            "pass (remat=full), or cut the loss into chunks; or cut the state over more devices"
        )


def refused_for_hbm(refusal: CompilerRefusal, args: Sequence[Any]) -> DoesNotFitError | None:
    """Read a refusal for lack of HBM; None if it is about something else.

    Args:
      refusal: the compiler's.
      args: the step's, with their shardings.
    """
    needed, available = refusal.requested_bytes, refusal.available_bytes
    if needed is None or available is None or not any(words in refusal.message for words in _HBM):
        return None
    return DoesNotFitError(needed, available, argument_bytes(args))


def argument_bytes(args: Sequence[Any]) -> int:
    """Return the bytes of one device's parts of arguments, without the padding of tiles."""
    import jax

    def of_part(leaf: Any) -> int:
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(of_part, jax.tree.leaves(args)))


def step_memory(program: CompiledProgram, hlo: TopLevelHlo, chip: Chip) -> StepMemory:
    """Return the memory of a compiled step in a device's HBM."""
    donated = (hlo.parameters[number].shape for number in hlo.aliases.values())
    return StepMemory(
        argument_bytes=program.argument_bytes,
        result_bytes=program.output_bytes,
        donated_bytes=sum(array_bytes(shape) for shape in donated if shape is not None),
        temporary_bytes=program.temp_bytes,
        code_bytes=program.generated_code_bytes,
        capacity_bytes=chip.hbm_bytes_per_chip // chip.devices_per_chip,
        peak_bytes=program.peak_bytes,
    )
