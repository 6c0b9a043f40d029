"""`--topology`, `--mesh` and `--explicit`: the slice that a function is sharded over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from systolic.chips import Chip
from systolic.compiler import NamedFunction
from systolic.compiler.jit_options import with_jit_options
from systolic.compiler.named_shardings import mesh_axes, sharded_argument
from systolic.compiler.slice_devices import explicit_axes, slice_mesh
from systolic.timing import slice_of

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSlice:
    """The slice that a command is about, and the mesh over it."""

    topology: str | None  # "2x4"; None: one device
    mesh: str  # "data=2,model=4"; "": none, the function makes its own
    explicit: bool = False  # the mesh's axes are explicit, so that types say how arrays are sharded

    def check(self, chips: Sequence[Chip]) -> None:
        """Check that each chip has such a slice, before anything is compiled.

        Raises:
          SliceError: a chip has no such slice, or the mesh does not fit it.
        """
        axes = mesh_axes(self.mesh) if self.mesh else {}
        for chip in chips if self.topology is not None else ():
            slice_of(chip, self.topology or "")
            if axes:
                slice_mesh(chip, self.topology or "", **axes)

    def call(self, function: NamedFunction, arguments: Sequence[str], chip: Chip) -> tuple[Any, list[Any]]:
        """Return the function and its arguments for one chip. The mesh is set while the function is traced.

        Raises:
          NamedFunctionError: a text that is not an argument.
          SliceError: a sharding does not fit the mesh.
        """
        mesh = None
        if self.topology is not None and self.mesh:
            mesh = slice_mesh(chip, self.topology, **mesh_axes(self.mesh))
            mesh = explicit_axes(mesh) if self.explicit else mesh
        return with_jit_options(function, mesh), [sharded_argument(text, mesh) for text in arguments]


def check_mesh(topology: str | None, mesh: str) -> None:
    """Raise `click.UsageError` if a mesh is named without a slice."""
    if mesh and topology is None:
        raise click.UsageError("--mesh is over the devices of a slice: give --topology too, such as 2x4")


def slice_options(command: _F) -> _F:
    """Add `--topology`, `--mesh` and `--explicit`, which the command takes as `asked_slice`."""

    @functools.wraps(command)
    def packed(*args: Any, topology: str | None, mesh: str, explicit: bool, **rest: Any) -> Any:
        check_mesh(topology, mesh)
        if explicit and not mesh:
            raise click.UsageError("--explicit is about the axes of --mesh: give that too, such as data=2,model=4")
        asked_slice = AskedSlice(topology=topology, mesh=mesh, explicit=explicit)
        return command(*args, asked_slice=asked_slice, **rest)

    made: Any = click.option(
        "--explicit",
        is_flag=True,
        help="Make the axes of the mesh explicit, as jax.make_mesh does, instead of leaving shardings to XLA.",
    )(packed)
    made = mesh_option("The mesh over the slice, such as data=2,model=4, in which the function is traced.")(made)
    return topology_option("The slice that the function is sharded over")(made)


def mesh_option(purpose: str) -> Callable[[_F], _F]:
    return click.option("--mesh", default="", metavar="NAME=SIZE,…", help=purpose)


def topology_option(purpose: str) -> Callable[[_F], _F]:
    text = f"{purpose}: chips along each axis, two on v5e and v6e, else three."
    return click.option("--topology", metavar="2x4", help=text)
