"""`systolic.moe`: a layer of experts, from the router's logits to the weighted sum of what a token's experts return."""

from systolic.ops.moe.api import moe, ragged_all_to_all

__all__ = ["moe", "ragged_all_to_all"]
