"""`systolic.moe`: a layer of experts, from the router's logits to the weighted sum of what a token's experts return."""

from systolic.ops.moe.api import moe

__all__ = ["moe"]
