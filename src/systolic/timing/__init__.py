"""The time of a function on a chip: modelled, simulated or measured, as every result states."""

from systolic.timing.call import Call
from systolic.timing.compiled import prepare_program, target_of, vmem_buffers
from systolic.timing.measured import NoDeviceError, device_of, measure
from systolic.timing.measurement import Measurement, Provenance
from systolic.timing.preparing import load_program, prepare, submit_preparation
from systolic.timing.program import Program
from systolic.timing.program_file import ProgramFileError
from systolic.timing.simulated import measured_run, simulate, submit_simulation
from systolic.timing.slice_program import SliceProgram
from systolic.timing.sliced import SparseCoreCollectiveError, slice_of

__all__ = [
    "Call",
    "Measurement",
    "NoDeviceError",
    "Program",
    "ProgramFileError",
    "Provenance",
    "SliceProgram",
    "SparseCoreCollectiveError",
    "device_of",
    "load_program",
    "measure",
    "measured_run",
    "prepare",
    "prepare_program",
    "simulate",
    "slice_of",
    "submit_preparation",
    "submit_simulation",
    "target_of",
    "vmem_buffers",
]
