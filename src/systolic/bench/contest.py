"""The programs that a case races: its op's programs, unless its suite has more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from systolic.chips import Chip
from systolic.ops.op import op_of
from systolic.ops.op_programs import Peer, RacedPrograms
from systolic.spec import SliceMesh


class Contest:
    """The programs of specs of one kind: their op's."""

    xla_is_explicit: ClassVar[bool] = False  # True if XLA's program takes a mesh with explicit axes, as ours does

    def planned(self, spec: Any) -> Any:
        """Return the spec whose configuration the planner chooses; None: there are many, each with its own."""
        return spec

    def counted(self, spec: Any) -> Sequence[Any]:
        """Return the specs whose work our program does, one after another: their limits add up."""
        return (spec,)

    def mesh(self, spec: Any) -> SliceMesh | None:
        """Return the slice and the mesh that it runs on; None: one device."""
        return op_of(spec).mesh(spec)

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        """Return our program and XLA's; raise SpecError if the spec does not describe all of the program."""
        return op_of(spec).raced(spec, chip)

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        """Yield public kernels to race against."""
        return op_of(spec).peers(spec, chip)


OF_OP = Contest()
