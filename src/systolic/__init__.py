"""systolic: matrix multiplication on TPUs, and what a TPU kernel does, without a TPU."""

from systolic.chips import Chip, chip
from systolic.problem import MatmulProblem
from systolic.tiling import Tiles

__version__ = "0.1.0"

__all__ = ["Chip", "MatmulProblem", "Tiles", "__version__", "chip"]
