"""The pipeline of every simulated call, on one chip or a slice: compile, read, compute contents, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.chips import Chip, SliceShape
from systolic.compiler import (
    CompiledProgram,
    NamedFunction,
    ProgramCache,
    Target,
    abstract_arguments,
    argument_values,
    check_sharded_call,
    compile_function,
    topology_of,
    tracing_settings,
    with_jit_options,
    with_slice_options,
)
from systolic.simulator import PreparedProgram, SimulatedRun, SliceRun, Unknown, Words
from systolic.timing.compiled import kernel_contents, prepare_program, target_of, top_level_hlo
from systolic.timing.contents import Contents, DeviceContents, KernelContents, parameter_contents
from systolic.timing.sliced import check_offloading, device_parameters, slice_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallContents:
    """Contents that are computed from a call's arguments, when the run asks for them."""

    parameters: Sequence[Words | Unknown]
    kernels: KernelContents

    def operand_words(self, name: str, call: int, index: int) -> Contents | None:
        """Contents of an operand; see `KernelContents.operand_words`."""
        return self.kernels.operand_words(name, call, index)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call of a JAX function, and the chip or slice that it is simulated on. It is sent to a worker."""

    fn: Callable[..., Any] | NamedFunction
    args: Sequence[Any]  # shapes of its arguments
    values: Sequence[np.ndarray | None]  # the flat arguments' values; None: not known
    chip: Chip  # on a slice, the chip of the slice
    settings: Mapping[str, Any]  # JAX's settings while it is traced; see `compiler.tracing_settings`
    shape: SliceShape | None = None  # the slice that it is sharded over; None: it runs on one device

    @staticmethod
    def described(
        fn: Callable[..., Any] | NamedFunction, args: Sequence[Any], chip: Chip, shape: SliceShape | None = None
    ) -> Call:
        """Describe a call of `fn(*args)` as it is, under JAX's settings of this process."""
        return Call(
            fn=fn,
            args=abstract_arguments(args, shardings=shape is not None),
            values=argument_values(args),
            chip=chip,
            settings=tracing_settings(),
            shape=shape,
        )

    @staticmethod
    def of(fn: Callable[..., Any] | NamedFunction, args: Sequence[Any], chip: Chip, topology: str | None) -> Call:
        """Check and describe a call of `fn(*args)`; raise SliceError if it is not sharded over the slice."""
        shape = None if topology is None else slice_of(chip, topology)
        check_sharded_call(fn, args, None if shape is None else topology_of(shape))
        if shape is None:
            return Call.described(with_jit_options(fn), args, chip)
        return Call.described(with_slice_options(fn), args, shape.chip, shape)

    @property
    def target(self) -> Target:
        """The chip or the slice in the compiler's words."""
        return target_of(self.chip, self.shape)

    def compiled(self, *, cached: bool, lines: bool = False) -> CompiledProgram:
        """Compile the call. Only in a worker: the compiler may abort its process."""
        cache = ProgramCache() if cached else None
        return compile_function(self.fn, self.args, self.target, cache=cache, settings=self.settings, lines=lines)

    def read(self, compiled: CompiledProgram) -> PreparedProgram:
        """Read the compiler's output; raise SimulationError if it contains something unknown or not simulated."""
        if self.shape is not None:
            check_offloading(compiled)
        return prepare_program(compiled, self.chip)

    def contents(self, compiled: CompiledProgram, prepared: PreparedProgram) -> list[CallContents]:
        """Return what is known on each device, in the order of the partitions."""
        import jax

        hlo = top_level_hlo(prepared)
        parameters: list[Sequence[Words | Unknown]] = (
            [parameter_contents(hlo, self.values)]
            if self.shape is None
            else device_parameters(compiled, hlo, self.values, jax.tree.leaves(self.args))
        )
        kernels = kernel_contents(
            prepared, self.fn, self.args, self.values, self.target, self.settings, len(parameters)
        )
        return [
            CallContents(parameters=words, kernels=operands)
            for words, operands in zip(parameters, kernels, strict=True)
        ]


def run_on_slice(
    prepared: PreparedProgram,
    contents: Sequence[DeviceContents],
    shape: SliceShape,
    assignment: Sequence[int],
    spans: int,
) -> SliceRun:
    """Run a program on all devices of a slice, with the contents of each partition."""
    return prepared.run_slice(
        shape,
        assignment,
        chip=shape.chip,
        parameters=[device.parameters for device in contents],
        operand_words=[device.operand_words for device in contents],
        spans=spans,
    )


def run_on_chip(prepared: PreparedProgram, contents: DeviceContents, chip: Chip, spans: int) -> SimulatedRun:
    """Run a program on one device."""
    return prepared.run(chip, parameters=contents.parameters, operand_words=contents.operand_words, spans=spans)
