"""Convert a chip to the compiler's names, and the compiler's output to the simulator's."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from systolic.chips import Chip, SliceShape
from systolic.compiler import (
    CompiledProgram,
    DeviceExecutions,
    NamedFunction,
    Peers,
    Target,
    device_executions,
    topology_of,
    traced_jaxpr,
)
from systolic.simulator import PreparedProgram, TopLevelHlo, VmemBuffer, prepare_listings
from systolic.timing.contents import KernelContents


def target_of(chip: Chip, shape: SliceShape | None = None) -> Target:
    """Return the compiler's name of the chip, or of a slice of such chips."""
    return Target(
        name=chip.name,
        topology=chip.topology,
        device_kind=chip.device_kind,
        cores_per_device=chip.cores_per_device,
        topology_config=chip.topology_config,
        flags=chip.compiler_flags,
        slice=None if shape is None else topology_of(shape),
    )


def kernel_contents(
    prepared: PreparedProgram,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    target: Target,
    settings: Mapping[str, Any],
    partitions: int = 1,
) -> list[KernelContents]:
    """Return the contents of kernels' operands on each device, computed on request."""

    @functools.cache
    def traced() -> Any:
        return traced_jaxpr(fn, args, target, settings=settings)

    peers = Peers[DeviceExecutions]()

    def executions(partition: int) -> DeviceExecutions:
        jaxpr = traced()
        names = [parameter_name(prepared, number) for number in range(len(values))]
        arguments = [shape if value is None else value for shape, value in zip(jaxpr.in_avals, values, strict=True)]
        return device_executions(jaxpr, arguments, names, partition=partition, peers=peers)

    hlo = top_level_hlo(prepared)
    first = KernelContents(hlo, functools.partial(executions, 0))
    others = (KernelContents(hlo, functools.partial(executions, index), first) for index in range(1, partitions))
    return [first, *others]


def top_level_hlo(prepared: PreparedProgram) -> TopLevelHlo:
    """Return the top-level HLO, which `prepare_program` has always read."""
    assert prepared.hlo is not None
    return prepared.hlo


def prepare_program(program: CompiledProgram, chip: Chip) -> PreparedProgram:
    """Read the compiler's output for a chip's model; raise SimulationError if it is not understood."""
    return prepare_listings(
        program.listings,
        chip,
        utilization=program.utilization,
        hlo_text=program.top_level_hlo,
        vmem=vmem_buffers(program.vmem_report),
        sparse_listings=program.sparse_listings,
        constants=program.constants,
    )


def parameter_name(prepared: PreparedProgram, number: int) -> str:
    """Return the program's name of one of its arguments."""
    parameter = prepared.hlo.parameters.get(number) if prepared.hlo is not None else None
    return parameter.name if parameter is not None else str(number)


def vmem_buffers(report: str) -> list[VmemBuffer]:
    """Return the compiler's report of VMEM as records. Entries of an unknown form are left out."""
    try:
        fields = json.loads(report) if report else {}
    except (ValueError, RecursionError):
        fields = {}
    return [
        buffer
        for op, breakdown in (fields.items() if isinstance(fields, dict) else ())
        if not op.startswith("<")  # the callers of inlined operations, which are listed separately
        for block in _records(breakdown, "blocks")
        for buffer in _buffers(op, block)
    ]


def _buffers(op: str, block: Mapping[str, Any]) -> Iterator[VmemBuffer]:
    kind, block_size = str(block.get("block_type", "")), block.get("block_size", 0)
    for allocation in _records(block, "allocations") or [{"size": block_size}]:
        tag, size = str(allocation.get("tag", "")), str(allocation.get("size", 0))
        if re.fullmatch(r"\d{1,18}", size, re.ASCII):  # also if it was written as text
            what = tag or str(allocation.get("shape", ""))
            yield VmemBuffer(op=op, kind=kind, size_bytes=int(size), is_spill=tag.upper() == "SPILL", what=what)


def _records(record: object, name: str) -> list[dict[str, Any]]:
    entries = record.get(name) if isinstance(record, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
