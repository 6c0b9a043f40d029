"""How long does this function take on this chip: modelled, simulated or measured, and every answer says which."""

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
    "Provenance",
    "prepare_program",
    "roofline",
    "simulate",
    "simulate_in_worker",
    "submit_simulation",
    "target_of",
    "vmem_buffers",
]
