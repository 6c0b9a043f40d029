"""The chip for which a function is being traced."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from systolic.chips import CHIPS, Chip


def target_chip() -> Chip | None:
    """The TPU that tracing is for: the abstract mesh's, else that of this process; None where there is none."""
    import jax
    from jax.sharding import get_abstract_mesh

    device = getattr(get_abstract_mesh(), "abstract_device", None)
    kind = getattr(device, "device_kind", None)
    if kind is None and jax.default_backend() == "tpu":
        kind = jax.devices()[0].device_kind
    return next((chip for chip in CHIPS.values() if chip.device_kind == kind), None)


def tracing_for(chip: Chip) -> AbstractContextManager[Any]:
    """Where no TPU is in sight, the context in which Pallas takes the program's device for one of this chip.

    `emit_pipeline` asks for the device while it is traced, and knows no CPU: not for interpret mode, and not for a
    function whose program for TPUs is traced beside that for CPUs.
    """
    from jax.sharding import AbstractDevice, get_abstract_mesh, use_abstract_mesh

    if target_chip() is not None:
        return nullcontext()
    device = AbstractDevice(device_kind=chip.device_kind, num_cores=chip.cores_per_device, platform="tpu")
    return use_abstract_mesh(get_abstract_mesh().update(abstract_device=device))
