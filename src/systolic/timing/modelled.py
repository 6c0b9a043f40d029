"""The time of a product by arithmetic alone: a bound that no kernel beats."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.problem import MatmulProblem
from systolic.timing.measurement import Measurement


def roofline(problem: MatmulProblem, chip: Chip) -> Measurement:
    """The longer of computing at peak and moving every operand once at the published bandwidth.

    Raises:
      UnsupportedDtypeError: the chip does not multiply that dtype.
    """
    compute_s = problem.flops / chip.peak_ops_per_s(problem.dtype_lhs)
    copy_s = problem.least_hbm_bytes / chip.hbm_bytes_per_s
    return Measurement(chip=chip.name, provenance="modelled", time_us=max(compute_s, copy_s) * 1e6)
