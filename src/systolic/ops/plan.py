"""The record of a plan: the configuration of the kernel that computes a spec on a chip, the reason, and the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from systolic.accuracy.time_error import TimeError
from systolic.cost import ModelledTime
from systolic.ops.op import Layout, op_of
from systolic.schedule import KernelConfig
from systolic.spec import SliceMesh
from systolic.support.summary import Summarised, Summary

# Of this spec, on a device or compiled and simulated; or by arithmetic, from simulated steps of its tile or a model.
Provenance = Literal["measured", "simulated", "profiled", "modelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Layout, Summarised):
    """The kernel of a spec on one device of a chip, or on each device of a slice.

    Its layout is of the product `computed`, and its `profiles` are those that its time is from.
    """

    spec: Any
    computed: Any  # the product that the kernel computes: the spec, perhaps turned
    chip: str
    config: KernelConfig
    time_us: float
    provenance: Provenance
    modelled: ModelledTime  # parts of the time by arithmetic, from the tile's profile if it has one
    mxu_us: float  # at the chip's peak
    hbm_us: float  # least traffic at the published bandwidth
    considered: int
    reason: str
    time_error: TimeError | None = None  # of a simulated time
    mesh: SliceMesh | None = None  # the slice that it is cut over; None: it runs on one device

    def summary(self) -> Summary:
        """Describe which kernel computes the spec, why, and how long it takes."""
        sizes, dtypes, _ = op_of(self.spec).words(self.spec)
        error = f" {self.time_error.words}" if self.time_error is not None else ""
        over = f" {self.mesh.topology} over {self.mesh}" if self.mesh is not None else ""
        sent = f"{self.link_bytes / 1e6:,.1f} MB from each device" if self.mesh is not None else ""
        return Summary(
            heading=f"{sizes}, {dtypes} on {self.chip}{over}",
            facts={
                "kernel": str(self.config),
                "why": self.reason,
                "time": f"{self.time_us:,.1f} µs {self.provenance}{error}; at peak {self.mxu_us:,.1f}, "
                f"least HBM traffic {self.hbm_us:,.1f}",
                "over links": sent,
            },
        )
