"""Read a compiled TPU program, execute its control flow, and count cycles, stalls and bytes on a chip's model."""

from systolic.simulator.collector import with_rare_collections
from systolic.simulator.core_records import (
    CopySize,
    CoreRun,
    OpRun,
    RegionRun,
    SparseCoreRun,
    SparseOpRun,
    VmemBuffer,
)
from systolic.simulator.errors import (
    DeadlockError,
    SimulationError,
    UnknownTimeError,
    UnknownValueError,
    UnknownWordsError,
)
from systolic.simulator.hardware.layout import array_bytes, words_of
from systolic.simulator.hardware.memory import Words
from systolic.simulator.hardware.timeline import Span
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.preparation import prepare_listings
from systolic.simulator.reading.hlo import HloParameter, HloShape, TopLevelHlo, parse_hlo
from systolic.simulator.records import SimulatedRun
from systolic.simulator.run import PreparedProgram
from systolic.simulator.slice.constants import NeighbourTableError
from systolic.simulator.slice.records import CollectiveRun, DeviceClass, LinkRun, SliceRun
from systolic.simulator.source_lines import with_source_lines
from systolic.simulator.traits import kernel_name, same_kernel, traits_of

__all__ = [
    "CollectiveRun",
    "CopySize",
    "CoreRun",
    "DeadlockError",
    "DeviceClass",
    "HloParameter",
    "HloShape",
    "LinkRun",
    "NeighbourTableError",
    "OpRun",
    "PreparedProgram",
    "RegionRun",
    "SimulatedRun",
    "SimulationError",
    "SliceRun",
    "Span",
    "SparseCoreRun",
    "SparseOpRun",
    "TopLevelHlo",
    "Unknown",
    "UnknownTimeError",
    "UnknownValueError",
    "UnknownWordsError",
    "VmemBuffer",
    "Words",
    "array_bytes",
    "kernel_name",
    "parse_hlo",
    "prepare_listings",
    "same_kernel",
    "traits_of",
    "with_rare_collections",
    "with_source_lines",
    "words_of",
]
