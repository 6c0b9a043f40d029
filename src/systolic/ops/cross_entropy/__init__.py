"""`systolic.linear_cross_entropy`: the softmax loss of a linear layer, without its logits in memory."""

from systolic.ops.cross_entropy.api import linear_cross_entropy
from systolic.ops.cross_entropy.op import CrossEntropyOp
from systolic.ops.cross_entropy.spec import CrossEntropySpec

__all__ = ["CrossEntropyOp", "CrossEntropySpec", "linear_cross_entropy"]
