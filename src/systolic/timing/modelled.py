"""The time of a product by arithmetic alone: a bound that no kernel beats."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.spec import MatmulSpec
from systolic.timing.measurement import Measurement


def roofline(spec: MatmulSpec, chip: Chip) -> Measurement:
    """The longer of computing at peak and moving every operand once at the published bandwidth.

    Raises:
      UnsupportedDtypeError: the chip does not multiply that dtype.
    """
    compute_s = spec.flops / chip.peak_ops_per_s(spec.dtype_lhs)
    copy_s = spec.least_hbm_bytes / chip.hbm_bytes_per_s
    return Measurement(chip=chip.name, provenance="modelled", time_us=max(compute_s, copy_s) * 1e6)
