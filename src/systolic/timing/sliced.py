"""Find the slice of a program and the arguments of each device on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from systolic.chips import Chip, SliceShape
from systolic.compiler import CompiledProgram, MeshPlace
from systolic.simulator import SimulationError, TopLevelHlo, Unknown, Words
from systolic.timing.contents import parameter_contents
from systolic.timing.shards import parameter_shardings

# XLA's mark of operations on the SparseCores, with their kind. Others, such as all-gathers, are executed there.
_OFFLOADED = re.compile(
    r" (all-to-all|ragged-all-to-all|collective-permute)\("
    r".*\"device_type\":\"DEVICE_TYPE_SPARSECORE\"",
    re.ASCII,
)
_OFFLOAD_FLAGS = {"all-to-all": "dense_all_to_all"}


class SparseCoreCollectiveError(SimulationError):
    """The compiler put communication on SparseCores of a kind that is not simulated there."""


def slice_of(chip: Chip, topology: str) -> SliceShape:
    """Return a slice of such chips; raise SliceError if there is no such slice."""
    return SliceShape.parse(chip, topology)


def check_offloading(program: CompiledProgram) -> None:
    """Check that all communication is in listings that are executed.

    Raises:
      SparseCoreCollectiveError: some is not; the message names the flag that keeps it on the TensorCore.
    """
    kinds = sorted({match[1] for match in _OFFLOADED.finditer(program.top_level_hlo)})
    if kinds:
        flags = (
            f"xla_tpu_enable_sparse_core_collective_offload_{_OFFLOAD_FLAGS.get(kind, kind).replace('-', '_')}=false"
            for kind in kinds
        )
        raise SparseCoreCollectiveError(
            f"the compiler runs {' and '.join(kinds)} on SparseCores, where it is not simulated; the "
            f"compiler flag {' '.join(flags)} keeps it on the TensorCore"
        )


def device_parameters(
    program: CompiledProgram, hlo: TopLevelHlo, values: Sequence[np.ndarray | None], args: Sequence[Any] = ()
) -> list[Sequence[Words | Unknown]]:
    """Return the contents of the program's arguments on each device, in the order of the partitions.

    Args:
      program: sharded over the devices of its assignment.
      hlo: its HLO, whose shapes are one device's part.
      values: the whole flat arguments'; None: only a shape was given.
      args: the flat arguments, with the shardings that jax 0.12 leaves out of the HLO; empty: they are not known.
    """
    count = len(program.assignment)
    if all(value is None for value in values):
        return [parameter_contents(hlo, values)] * count
    shardings = parameter_shardings(program.top_level_hlo)

    def part(number: int, value: np.ndarray | None, partition: int) -> np.ndarray | None:
        sharding = shardings.get(number)
        if value is None:
            return None
        if sharding is not None:
            return sharding.part(value, partition)
        parameter = hlo.parameters.get(number)
        if parameter is None or parameter.shape is None or parameter.shape.sizes == value.shape:
            return value
        cut: Any = getattr(args[number], "sharding", None) if args else None
        return MeshPlace.of(cut.mesh, partition).part(value, cut.spec) if hasattr(cut, "spec") else None

    return [
        parameter_contents(hlo, [part(number, value, partition) for number, value in enumerate(values)])
        for partition in range(count)
    ]
