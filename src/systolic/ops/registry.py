"""The table of ops. A new op is one more line."""

from systolic.ops.collective.op import GatheredWeightOp, RingProductOp
from systolic.ops.cross_entropy.op import CrossEntropyOp
from systolic.ops.gated.op import GatedOp
from systolic.ops.grouped.op import GroupedGradientOp, GroupedOp
from systolic.ops.matmul.op import MatmulOp
from systolic.ops.moe.spec import MoeLayers
from systolic.ops.op import register, register_kept
from systolic.ops.quantized.op import QuantizedOp
from systolic.ops.sparse.op import SparseOp

OPS = (
    MatmulOp(),
    GatedOp(),
    GroupedOp(),
    GroupedGradientOp(),
    QuantizedOp(),
    SparseOp(),
    CrossEntropyOp(),
    RingProductOp(),
    GatheredWeightOp(),
)

for op in OPS:
    register(op)
register_kept(MoeLayers())  # of several kernels, which `plan_moe` plans
