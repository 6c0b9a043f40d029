"""systolic: matrix multiplication on TPUs, and the analysis of TPU kernels without a TPU."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from systolic.checking import CheckReport, check
    from systolic.chips import Chip, chip
    from systolic.compiler import slice_devices, slice_mesh, typical
    from systolic.explaining import Explanation, explain
    from systolic.ops.collective import (
        all_gather_matmul,
        matmul_all_reduce,
        matmul_reduce_scatter,
        plan_across_chips,
    )
    from systolic.ops.cross_entropy import linear_cross_entropy
    from systolic.ops.cross_entropy.spec import CrossEntropySpec
    from systolic.ops.exchange import ragged_all_to_all
    from systolic.ops.gated import gated_matmul
    from systolic.ops.gated.spec import GatedSpec
    from systolic.ops.grouped import grouped_matmul
    from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
    from systolic.ops.matmul import dot_general, einsum, matmul
    from systolic.ops.moe import moe
    from systolic.ops.moe.plan import MoePlan, plan_moe
    from systolic.ops.moe.spec import MoeSpec
    from systolic.ops.plan import Plan
    from systolic.ops.planner import Planner, plan, use
    from systolic.ops.quantized import Quantized, dequantize, fake_quantize, from_qwix, quantize, to_qwix
    from systolic.ops.quantized.spec import QuantizedSpec
    from systolic.ops.sparse import BlockMask, BlockSparse, sparse_matmul
    from systolic.ops.sparse.spec import SparseSpec
    from systolic.report import Comparison, compare
    from systolic.running import ScriptRun, TimedProgram, record
    from systolic.schedule import Tiles
    from systolic.simulator import SimulatedRun
    from systolic.simulator.slice.records import SliceRun
    from systolic.spec import MatmulSpec
    from systolic.steps import Step, StepRun, step
    from systolic.timing import Program, SliceProgram, load_program, prepare, simulate
    from systolic.timing.many import simulate_many
    from systolic.timing.outcome import Outcome
    from systolic.tuning import FunctionTuning, TuningResult, tune
    from systolic.tuning.matmuls import Matmuls, matmuls

__version__ = "0.4.0.dev0"

__all__ = [
    "BlockMask",
    "BlockSparse",
    "CheckReport",
    "Chip",
    "Comparison",
    "CrossEntropySpec",
    "Explanation",
    "FunctionTuning",
    "GatedSpec",
    "GroupedGradientSpec",
    "GroupedSpec",
    "MatmulSpec",
    "Matmuls",
    "MoePlan",
    "MoeSpec",
    "Outcome",
    "Plan",
    "Planner",
    "Program",
    "Quantized",
    "QuantizedSpec",
    "ScriptRun",
    "SimulatedRun",
    "SliceProgram",
    "SliceRun",
    "SparseSpec",
    "Step",
    "StepRun",
    "Tiles",
    "TimedProgram",
    "TuningResult",
    "__version__",
    "all_gather_matmul",
    "check",
    "chip",
    "compare",
    "dequantize",
    "dot_general",
    "einsum",
    "explain",
    "fake_quantize",
    "from_qwix",
    "gated_matmul",
    "grouped_matmul",
    "linear_cross_entropy",
    "load_program",
    "matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "matmuls",
    "moe",
    "plan",
    "plan_across_chips",
    "plan_moe",
    "prepare",
    "quantize",
    "ragged_all_to_all",
    "record",
    "simulate",
    "simulate_many",
    "slice_devices",
    "slice_mesh",
    "sparse_matmul",
    "step",
    "to_qwix",
    "tune",
    "typical",
    "use",
]

# Where each name is defined. It is imported when it is first used: `systolic --help` needs none, a product few.
_DOORS = {
    "systolic.checking": ("CheckReport", "check"),
    "systolic.chips": ("Chip", "chip"),
    "systolic.compiler": ("slice_devices", "slice_mesh", "typical"),
    "systolic.timing.many": ("simulate_many",),
    "systolic.timing.outcome": ("Outcome",),
    "systolic.explaining": ("Explanation", "explain"),
    "systolic.ops.plan": ("Plan",),
    "systolic.ops.planner": ("Planner", "plan", "use"),
    "systolic.ops.collective": (
        "all_gather_matmul",
        "matmul_all_reduce",
        "matmul_reduce_scatter",
        "plan_across_chips",
    ),
    "systolic.ops.cross_entropy": ("linear_cross_entropy",),
    "systolic.ops.exchange": ("ragged_all_to_all",),
    "systolic.ops.gated": ("gated_matmul",),
    "systolic.ops.grouped": ("grouped_matmul",),
    "systolic.ops.matmul": ("dot_general", "einsum", "matmul"),
    "systolic.ops.moe": ("moe",),
    "systolic.ops.moe.plan": ("MoePlan", "plan_moe"),
    "systolic.ops.moe.spec": ("MoeSpec",),
    "systolic.ops.quantized": ("Quantized", "dequantize", "fake_quantize", "from_qwix", "quantize", "to_qwix"),
    "systolic.ops.sparse": ("BlockMask", "BlockSparse", "sparse_matmul"),
    "systolic.report": ("Comparison", "compare"),
    "systolic.running": ("ScriptRun", "TimedProgram", "record"),
    "systolic.schedule": ("Tiles",),
    "systolic.simulator": ("SimulatedRun",),
    "systolic.simulator.slice.records": ("SliceRun",),
    "systolic.ops.cross_entropy.spec": ("CrossEntropySpec",),
    "systolic.ops.gated.spec": ("GatedSpec",),
    "systolic.ops.grouped.spec": ("GroupedGradientSpec", "GroupedSpec"),
    "systolic.ops.quantized.spec": ("QuantizedSpec",),
    "systolic.ops.sparse.spec": ("SparseSpec",),
    "systolic.spec": ("MatmulSpec",),
    "systolic.steps": ("Step", "StepRun", "step"),
    "systolic.timing": ("Program", "SliceProgram", "load_program", "prepare", "simulate"),
    "systolic.tuning": ("FunctionTuning", "TuningResult", "tune"),
    "systolic.tuning.matmuls": ("Matmuls", "matmuls"),
}


def __getattr__(name: str) -> Any:
    for door, names in _DOORS.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(door), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
