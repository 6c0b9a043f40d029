"""Targets and compiled programs, both plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Chips that links connect, in the words that libtpu knows."""

    name: str  # such as "v6e:2x4"
    config: str | None = None  # name of the chips' configuration, such as "megacore" on v4; None: the usual one
    # Of each of three axes, whether a link goes from its last chip to its first; None: libtpu's default.
    wrap: tuple[bool, ...] | None = None
    host_bounds: tuple[int, ...] | None = None  # chips of one host along each axis; None: libtpu's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The chip to compile for, in the words the compiler knows."""

    name: str  # the caller's name of the chip, such as "v5e"
    topology: str  # libtpu's name of a slice of such chips, such as "v5e:2x2"
    device_kind: str  # JAX's name of one device of it, such as "TPU v5 lite"
    cores_per_device: int  # TensorCores that JAX sees as one device
    # Libtpu's name of the chips' configuration, such as "megacore" on v4; None: the usual one.
    topology_config: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)  # compiler flags, which are part of the program
    slice: Topology | None = (
        None  # the slice that the function is sharded over; None: it runs on one device of `topology`
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """One function compiled for one chip, or for all chips of a slice."""

    # The final instruction listing of every part: "TLP" is the top-level program, any other key the name of the HLO
    # operation that it calls, such as "fusion" or "mm.1".
    listings: Mapping[str, str]
    # For each of them, the compiler's table of how many instructions a bundle issues on which unit.
    utilization: Mapping[str, str]
    # The final listing of every program of the SparseCores, by the name of the operation that starts it, in the order
    # in which they were compiled; empty where they have nothing to do.
    sparse_listings: Mapping[str, str]
    # What the compiler keeps in VMEM, operation by operation, as JSON; "" where it left no report.
    vmem_report: str
    top_level_hlo: str  # the optimised and scheduled HLO of the whole program
    generated_code_bytes: int  # size of the machine code
    temp_bytes: int  # HBM for temporaries
    argument_bytes: int  # HBM for the arguments
    output_bytes: int  # HBM for the results
    # Floating-point operations by XLA's own count, where it has one (it sees nothing inside a kernel).
    cost_flops: float | None
    cost_bytes_accessed: float | None  # bytes by XLA's own count, where it has one
    chip: str  # name of the target
    jax_version: str  # version of jax that lowered it
    libtpu_version: str  # version of libtpu that compiled it
    compile_s: float  # seconds that tracing, lowering and compiling took, when it was compiled
    key: str  # hash of everything that decides the program; the same key means the same program
    from_cache: bool  # True if this call compiled nothing
    # Ids of the slice's devices, in the order of the program's partitions; none: it is of one device.
    assignment: tuple[int, ...] = ()
    # The segment of HBM that the runtime fills with the program's constants; empty where the program is of one
    # device, or where the segment was not found in the binary.
    constants: bytes = b""
    # The most HBM that is in use at once, arguments and results included; None: the compiler did not say.
    peak_bytes: int | None = None
