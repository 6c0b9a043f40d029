"""`systolic.ragged_all_to_all`: slices of rows from each device to each, in one kernel that sends whole tiles."""

from systolic.ops.exchange.api import ragged_all_to_all

__all__ = ["ragged_all_to_all"]
