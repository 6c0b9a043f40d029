"""The chip for which a function is being traced."""

from __future__ import annotations

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
