"""Values that devices of a mesh give each other by an all-to-all or an all-gather, such as offsets of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from systolic.compiler.deferred import Deferred, Missing
from systolic.compiler.mesh_place import MeshPlace

Walk = TypeVar("Walk")
Path = tuple[int, ...]  # of an equation in a function
_MAX_DEVICES = 64  # the function is walked for every device


class Peers(Generic[Walk]):
    """The walks of a function on all devices of a mesh, made when needed, and the values that they exchange."""

    def __init__(self) -> None:
        self._walks: dict[int, Walk] = {}
        self._walk: Callable[[int], Walk] | None = None
        # By device and equation; None where a loop gives several.
        self._operands: dict[int, dict[Path, Deferred | None]] = {}

    def walked(self, partition: int, walk: Callable[[int], Walk]) -> Walk:
        """Return the walk of a device, which may ask for what others give."""
        self._walk = self._walk or walk
        if partition not in self._walks:
            self._operands[partition] = {}
            self._walks[partition] = walk(partition)
        return self._walks[partition]

    def received(
        self, equation: Any, inputs: Sequence[Deferred], path: Path, place: MeshPlace, partition: int
    ) -> list[Deferred]:
        """Return what a device gets by an operation over axes of the mesh; a `Missing` for other operations."""
        name, params = equation.primitive.name, equation.params
        unknown = Missing(f"what other devices give to a {name}")
        names = params.get("axis_name")
        axes = tuple(names) if isinstance(names, tuple | list) else (names,)
        receive = _RECEIVED.get(name)
        is_known = receive is not None and len(axes) == len(inputs) == 1 and params.get("axis_index_groups") is None
        if receive is None or not is_known or place.sizes[axes[0]] > _MAX_DEVICES:
            return [Deferred.known(unknown) for _ in equation.outvars]
        operands = self._operands[partition]
        operands[path] = None if path in operands else inputs[0]

        def compute() -> Any:
            values = []
            for peer in place.along(axes[0]):
                operand = self._operand(peer, path)
                value = unknown if operand is None else operand.get()
                if isinstance(value, Missing):
                    return value
                values.append(np.asarray(value))
            return receive(params, place.at[axes[0]], values)

        return [Deferred(compute, local=True)]

    def _operand(self, partition: int, path: Path) -> Deferred | None:
        if partition not in self._operands:
            assert self._walk is not None  # some walk asks
            self.walked(partition, self._walk)
        return self._operands[partition].get(path)


def _exchanged(params: Any, index: int, values: list[np.ndarray]) -> Any:
    if not params["tiled"]:
        return np.stack([value.take(index, params["split_axis"]) for value in values], params["concat_axis"])
    parts = [np.split(value, len(values), params["split_axis"])[index] for value in values]
    return np.concatenate(parts, params["concat_axis"])


def _gathered(params: Any, index: int, values: list[np.ndarray]) -> Any:
    join = np.concatenate if params["tiled"] else np.stack
    return join(values, params["all_gather_dimension"])


_RECEIVED = {"all_to_all": _exchanged, "all_gather": _gathered, "all_gather_invariant": _gathered}
