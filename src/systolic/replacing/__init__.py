"""Products of somebody's JAX function by this package's kernels, where that is known to gain."""

from systolic.replacing.decisions import Decision
from systolic.replacing.matmuls import Matmuls, matmuls

__all__ = ["Decision", "Matmuls", "matmuls"]
