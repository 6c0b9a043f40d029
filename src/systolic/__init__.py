"""systolic: matrix multiplication on TPUs, and what a TPU kernel does, without a TPU."""

from systolic.checking import CheckReport, check
from systolic.chips import Chip, chip
from systolic.explaining import Explanation, explain
from systolic.ops import Plan, Planner, plan, use
from systolic.ops.matmul import matmul
from systolic.schedule import Tiles
from systolic.simulator import SimulatedRun
from systolic.spec import MatmulSpec
from systolic.timing import simulate
from systolic.tuning import TuningResult, tune

__version__ = "0.3.0"

__all__ = [
    "CheckReport",
    "Chip",
    "Explanation",
    "MatmulSpec",
    "Plan",
    "Planner",
    "SimulatedRun",
    "Tiles",
    "TuningResult",
    "__version__",
    "check",
    "chip",
    "explain",
    "matmul",
    "plan",
    "simulate",
    "tune",
    "use",
]
