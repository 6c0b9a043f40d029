"""A time and its provenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.accuracy.time_error import ProgramTraits
from systolic.simulator import SimulatedRun, traits_of
from systolic.simulator.slice.records import SliceRun

Provenance = Literal["modelled", "simulated", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The time of a function on one device of a chip, or on a slice, and its provenance.

    `modelled`: arithmetic alone. `simulated`: compiled by the TPU compiler and executed on the chip's model.
    `measured`: on a device. `run` is the simulated run, for `simulated` only; on a slice it is the run of the
    device that ends last, and `slice_run` holds all.
    """

    chip: str
    provenance: Provenance
    time_us: float
    run: SimulatedRun | None = None
    slice_run: SliceRun | None = None
    jax_version: str | None = None
    libtpu_version: str | None = None
    compile_s: float | None = None
    from_cache: bool | None = None

    @property
    def traits(self) -> ProgramTraits | None:
        """Traits of the simulated program, which select similar published ones; None: not simulated."""
        if self.slice_run is not None:
            return self.slice_run.traits
        return None if self.run is None else traits_of(self.run)
