"""Targets and compiled programs, both plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Chips that links connect, in the words that libtpu knows.

    Attributes:
        name: such as "v6e:2x4".
        config: name of the chips' configuration, such as "megacore" on v4; None: the usual one.
        wrap: of each of three axes, whether a link goes from its last chip to its first; None: libtpu's default.
        host_bounds: chips of one host along each axis; None: libtpu's default.
    """

    name: str
    config: str | None = None
    wrap: tuple[bool, ...] | None = None
    host_bounds: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The chip to compile for, in the words the compiler knows.

    Attributes:
        name: the caller's name of the chip, such as "v5e".
        topology: libtpu's name of a slice of such chips, such as "v5e:2x2".
        device_kind: JAX's name of one device of it, such as "TPU v5 lite".
        cores_per_device: TensorCores that JAX sees as one device.
        topology_config: libtpu's name of the chips' configuration, such as "megacore" on v4; None: the usual one.
        flags: compiler flags, which are part of the program.
        slice: that the function is sharded over; None: it runs on one device of `topology`.
    """

    name: str
    topology: str
    device_kind: str
    cores_per_device: int
    topology_config: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    slice: Topology | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """One function compiled for one chip, or for all chips of a slice.

    Attributes:
        listings: the final instruction listing of every part: "TLP" is the top-level program, any other key the name of
            the HLO operation that it calls, such as "fusion" or "mm.1".
        utilization: for each of them, the compiler's table of how many instructions a bundle issues on which unit.
        sparse_listings: the final listing of every program of the SparseCores, by the name of the operation that starts
            it, in the order in which they were compiled; empty where they have nothing to do.
        vmem_report: what the compiler keeps in VMEM, operation by operation, as JSON; "" where it left no report.
        top_level_hlo: the optimised and scheduled HLO of the whole program.
        generated_code_bytes: size of the machine code.
        temp_bytes: HBM for temporaries.
        argument_bytes: HBM for the arguments.
        output_bytes: HBM for the results.
        cost_flops: floating-point operations by XLA's own count, where it has one (it sees nothing inside a kernel).
        cost_bytes_accessed: bytes by XLA's own count, where it has one.
        chip: name of the target.
        jax_version: version of jax that lowered it.
        libtpu_version: version of libtpu that compiled it.
        compile_s: seconds that tracing, lowering and compiling took, when it was compiled.
        key: hash of everything that decides the program; the same key means the same program.
        from_cache: whether this call compiled nothing.
        assignment: ids of the slice's devices, in the order of the program's partitions; none: it is of one device.
        constants: the segment of HBM that the runtime fills with the program's constants; empty where the program is of
            one device, or where the segment was not found in the binary.
        peak_bytes: the most HBM that is in use at once, arguments and results included; None: the compiler did not say.
    """

    listings: Mapping[str, str]
    utilization: Mapping[str, str]
    sparse_listings: Mapping[str, str]
    vmem_report: str
    top_level_hlo: str
    generated_code_bytes: int
    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    cost_flops: float | None
    cost_bytes_accessed: float | None
    chip: str
    jax_version: str
    libtpu_version: str
    compile_s: float
    key: str
    from_cache: bool
    assignment: tuple[int, ...] = ()
    constants: bytes = b""
    peak_bytes: int | None = None
