"""How long does this function take on this chip: modelled, simulated or measured, and every answer says which."""

from systolic.measure.measurement import Measurement, Provenance
from systolic.measure.modelled import roofline
from systolic.measure.simulated import simulate_in_worker, submit_simulation, target_of

__all__ = ["Measurement", "Provenance", "roofline", "simulate_in_worker", "submit_simulation", "target_of"]
