"""How long does this function take on this chip: modelled, simulated or measured, and every answer says which."""

from systolic.measure.measured import NoDeviceError, device_of, measure
from systolic.measure.measurement import Measurement, Provenance
from systolic.measure.modelled import roofline
from systolic.measure.simulated import (
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
    "roofline",
    "simulate",
    "simulate_in_worker",
    "submit_simulation",
    "target_of",
    "vmem_buffers",
]
