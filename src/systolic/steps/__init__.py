"""A whole training or decoding step of a sharded model: how long it takes, what fits, and where the time goes."""

from systolic.steps.call import Step

__all__ = ["Step"]
