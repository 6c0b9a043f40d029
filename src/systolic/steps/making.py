"""Steps that a user's function makes, by its name: looked up, and called, only in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from systolic.chips import Chip
from systolic.compiler import NamedFunction, NamedFunctionError, at_stage, slice_mesh
from systolic.steps.call import Step
from systolic.support.bugs import runs_user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMaker:
    """A function that is called with a mesh and makes a step."""

    function: NamedFunction  # its name and keyword arguments
    topology: str | None = None  # chips of the slice, "2x4"; None: one device, for which there is no mesh
    axes: Mapping[str, int] = field(default_factory=dict)  # the mesh's over the slice, with their sizes

    @property
    def name(self) -> str:
        return self.function.text

    def make(self, chip: Chip) -> Step:
        """Make the step for slices of a chip. Imports the user's code, so only in a worker.

        Raises:
          NamedFunctionError: the function makes no `systolic.Step`.
          SliceError: there is no such mesh.
          Exception: whatever the function raises.
        """
        mesh = None if self.topology is None else slice_mesh(chip, self.topology, **self.axes)
        step = _called(self.function, mesh)
        if not isinstance(step, Step):
            raise NamedFunctionError(
                f"{self.name} returned a {type(step).__name__}: what makes a step is called with a mesh and returns a "
                "systolic.Step; of a function that is the step, describe the arguments with --arg"
            )
        return step


@runs_user_code
def _called(function: NamedFunction, mesh: Any) -> Any:
    maker = function.load()
    with at_stage("tracing"):
        return maker(mesh)
