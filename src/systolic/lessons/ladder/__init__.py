"""The ladder: eight matmul kernels, each one idea above the one before, from the smallest to the product's own.

The kernels' files need JAX and nothing of this package. Their facts are in `rungs.py`.
"""

from systolic.lessons.ladder.rungs import RUNGS, Rung, UnknownRungError, rungs_named

__all__ = ["RUNGS", "Rung", "UnknownRungError", "rungs_named"]
