"""systolic: matrix multiplication on TPUs, and what a TPU kernel does, without a TPU."""

from typing import TYPE_CHECKING

from systolic.checking import CheckReport, check
from systolic.chips import Chip, chip
from systolic.explaining import Explanation, explain
from systolic.ops import Plan, Planner, plan, use
from systolic.schedule import Tiles
from systolic.simulator import SimulatedRun
from systolic.spec import MatmulSpec
from systolic.timing import simulate
from systolic.tuning import TuningResult, tune

if TYPE_CHECKING:
    from systolic.ops.matmul.api import matmul

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


def __getattr__(name: str) -> object:
    # What traces needs JAX, which `import systolic` does not import.
    if name == "matmul":
        from systolic.ops.matmul.api import matmul

        return matmul
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
