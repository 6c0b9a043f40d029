"""Programs of recorded operations: an operation's name, its arguments and tiles, as tuning tables record them.

Each family has a file. Operations of XLA are rebuilt in plain JAX; kernels are called from their packages.
"""

from systolic.validation.recorded.programs import KINDS_IN_JAX, recorded_program

__all__ = ["KINDS_IN_JAX", "recorded_program"]
