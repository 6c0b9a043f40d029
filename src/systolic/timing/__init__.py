"""How long does this function take on this chip: modelled, simulated or measured, and every answer says which."""

from systolic.timing.measured import NoDeviceError, device_of, measure
from systolic.timing.measurement import Measurement, Provenance
from systolic.timing.simulated import (
    prepare_program,
    simulate,
    simulate_in_worker,
    submit_simulation,
    target_of,
    vmem_buffers,
)

__all__ = [
    "Measurement",
    "NoDeviceError",
    "Provenance",
    "device_of",
    "measure",
    "prepare_program",
    "simulate",
    "simulate_in_worker",
    "submit_simulation",
    "target_of",
    "vmem_buffers",
]
