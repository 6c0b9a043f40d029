"""systolic: matrix multiplication on TPUs, and what a TPU kernel does, without a TPU."""

from systolic.checking import CheckReport, check
from systolic.chips import Chip, chip
from systolic.compiler import slice_devices, slice_mesh
from systolic.experiments import Outcome, simulate_many
from systolic.explaining import Explanation, explain
from systolic.ops import Plan, Planner, plan, use
from systolic.ops.gated import gated_matmul
from systolic.ops.grouped import grouped_matmul
from systolic.ops.matmul import matmul
from systolic.schedule import Tiles
from systolic.simulator import SimulatedRun
from systolic.simulator.slice.records import SliceRun
from systolic.spec import GatedSpec, GroupedGradientSpec, GroupedSpec, MatmulSpec
from systolic.timing import Program, SliceProgram, load_program, prepare, simulate
from systolic.tuning import TuningResult, tune

__version__ = "0.3.0"

__all__ = [
    "CheckReport",
    "Chip",
    "Explanation",
    "GatedSpec",
    "GroupedGradientSpec",
    "GroupedSpec",
    "MatmulSpec",
    "Outcome",
    "Plan",
    "Planner",
    "Program",
    "SimulatedRun",
    "SliceProgram",
    "SliceRun",
    "Tiles",
    "TuningResult",
    "__version__",
    "check",
    "chip",
    "explain",
    "gated_matmul",
    "grouped_matmul",
    "load_program",
    "matmul",
    "plan",
    "prepare",
    "simulate",
    "simulate_many",
    "slice_devices",
    "slice_mesh",
    "tune",
    "use",
]
