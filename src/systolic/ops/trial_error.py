"""Errors of the simulated times of trials."""

from __future__ import annotations

from systolic.accuracy.time_error import ProgramTraits, TimeError, time_error
from systolic.chips import Chip
from systolic.cost import machine_roofline
from systolic.ops.op import op_of
from systolic.spec import Spec
from systolic.store import Trial


def trial_error(trial: Trial, computed: Spec, chip: Chip) -> TimeError | None:
    """Return the error of a trial's simulated time; None if it is measured, or the error is unknown.

    A store does not record how long the matrix units were busy: here they are busy for the least time of the products
    that the kernel computes, at the simulator's clock. The number of copies is not recorded either.
    """
    if trial.measured_us is not None or not trial.simulated_us:
        return None
    roofline = machine_roofline(computed, chip)
    hbm_us = (trial.hbm_bytes or 0) / chip.machine.hbm_bytes_per_s * 1e6
    return time_error(
        chip,
        ProgramTraits(
            unlike="" if op_of(computed).mesh(computed) is None else "communication between chips",
            pallas_share=0.0 if trial.config is None else 1.0,
            matrix_share=roofline.mxu_us / trial.simulated_us,
            hbm_share=hbm_us / trial.simulated_us,
            time_us=trial.simulated_us,
        ),
    )
