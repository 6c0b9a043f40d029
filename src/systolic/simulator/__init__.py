"""Reads a compiled TPU program, executes its control flow, and counts cycles, stalls and bytes on a chip's model."""

from systolic.simulator.errors import DeadlockError, SimulationError
from systolic.simulator.run import CoreRun, OpTime, SimulatedRun, simulate_listings

__all__ = ["CoreRun", "DeadlockError", "OpTime", "SimulatedRun", "SimulationError", "simulate_listings"]
