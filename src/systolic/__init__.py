"""systolic: matrix multiplication on TPUs, and what a TPU kernel does, without a TPU."""

from systolic.chips import Chip, chip
from systolic.measure import simulate
from systolic.problem import MatmulProblem
from systolic.simulator import SimulatedRun
from systolic.tiling import Tiles

__version__ = "0.2.0"

__all__ = ["Chip", "MatmulProblem", "SimulatedRun", "Tiles", "__version__", "chip", "simulate"]
