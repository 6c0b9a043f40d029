"""Compute the contents of the operands of a function's Pallas calls, on the CPU, from the function's arguments.

A kernel with scalar prefetch branches on values that the function often computes: the group boundaries of a ragged
product, the list of nonzero blocks. They are evaluated here from the traced function, and only on request: no large
product is ever computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.compat.jaxpr_values import Environment, computed, interpreted, is_interpretable, scan_parts, while_parts
from systolic.compat.jaxprs import CALLS, called_function, equations, function_of, functions_inside, is_literal
from systolic.compat.mesh_values import MESH_VALUE
from systolic.compat.typical import PRIMITIVE, typical_value
from systolic.compiler.cut_values import part_of, whole_of
from systolic.compiler.deferred import Deferred, Missing, applied, known_or
from systolic.compiler.invariants import Invariants
from systolic.compiler.mesh_place import KEEPS_VALUE, MeshPlace, names_axis
from systolic.compiler.peers import Peers

_PALLAS = "pallas_call"
_JIT = "jit"  # may name absent devices, so its contents are evaluated without it
_IN_MEMORY = "with_memory_space_constraint"  # the same array; JAX does not run it outside a program
_MAX_WHILE_ROUNDS = 100_000  # of a loop around a Pallas call
_MAX_ELEMENTS = 1 << 26  # of an evaluated array
_MAX_KERNEL_ELEMENTS = 1 << 20  # of an array of an interpreted kernel, such as a router's


@dataclass(frozen=True, slots=True, kw_only=True)
class PallasOperands:
    """One execution of a Pallas call."""

    # The call's number in the function's text; a loop executes the same call many times.
    site: tuple[int, ...]
    equation: Any  # of that call
    shapes: tuple[tuple[int, ...], ...]  # of the operands, in the order of the compiled operation's
    # Their contents: arrays, or `Missing`. `local` contents may differ between devices.
    operands: tuple[Deferred, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceExecutions:
    """All executions of Pallas calls on one device.

    Attributes:
        executions: the executions, in order.
        local: True if other devices may execute other calls, because values that differ between devices decide.
        complete: True if no call is left out because a value that decides about it is unknown.
    """

    executions: list[PallasOperands]
    local: bool
    complete: bool = True


def pallas_operands(
    closed_jaxpr: Any, arguments: Sequence[Any], names: Sequence[str], *, partition: int = 0
) -> list[PallasOperands]:
    """Return every execution of a Pallas call in a traced function, in order; see `device_executions`."""
    return device_executions(closed_jaxpr, arguments, names, partition=partition).executions


def device_executions(
    closed_jaxpr: Any,
    arguments: Sequence[Any],
    names: Sequence[str],
    *,
    partition: int = 0,
    peers: Peers[DeviceExecutions] | None = None,
) -> DeviceExecutions:
    """Return every execution of a Pallas call in a traced function, in order, with the contents of its operands.

    Args:
        closed_jaxpr: the function, traced.
        arguments: its flat arguments: arrays, or objects with only a shape.
        names: names of the arguments, for the reasons.
        partition: number of the device whose operands are returned, if the function is sharded over a mesh.
        peers: shared by the calls for other devices of the same mesh, so that each is walked once.

    A call in a branch or a loop that depends on unknown values is left out.
    """
    peers = Peers[DeviceExecutions]() if peers is None else peers

    def walked(partition: int) -> DeviceExecutions:
        contents = [
            Deferred.known(np.asarray(argument))
            if hasattr(argument, "__array__")
            else Deferred.known(Missing(f"argument {name}, of which only the shape was given", number))
            for number, (argument, name) in enumerate(zip(arguments, names, strict=True))
        ]
        walk = _Walk(partition, Invariants(contents), peers)
        walk.run(closed_jaxpr, contents, ())
        return DeviceExecutions(executions=walk.executions, local=walk.chose, complete=not walk.left_out)

    return peers.walked(partition, walked)


@dataclass(slots=True)
class _Walk:
    partition: int
    invariants: Invariants
    peers: Peers[DeviceExecutions]
    executions: list[PallasOperands] = field(default_factory=list)
    place: MeshPlace | None = None  # inside of `jax.shard_map`
    chose: bool = False  # chose what to execute by a value that may differ on other devices
    left_out: bool = False  # left out something that may execute calls

    def run(
        self,
        function: Any,
        arguments: Sequence[Deferred],
        path: tuple[int, ...],
        used: Sequence[bool] | None = None,
    ) -> list[Deferred]:
        """Walk a jaxpr, and return its results. `used`: the results that are used; None: all."""
        environment = Environment(
            function,
            arguments,
            literal=lambda atom: self.invariants.known(id(atom), atom.val),
            constant=lambda value: self.invariants.known(id(value), value),
        )
        jaxpr = function_of(function).jaxpr
        needed = _used_equations(jaxpr, used)
        unused = Deferred.known(Missing("a result that nothing uses"))
        for number, equation in enumerate(jaxpr.eqns):
            if number in needed:
                inputs = environment.inputs(equation)
                outputs = self._equation(equation, inputs, (*path, number), needed[number])
            else:
                outputs = [unused] * len(equation.outvars)
            environment.write(equation, outputs)
        return environment.results()

    def _equation(
        self, equation: Any, inputs: list[Deferred], path: tuple[int, ...], used: Sequence[bool]
    ) -> list[Deferred]:
        name = equation.primitive.name
        if name == _PALLAS:
            return self._pallas(equation, inputs, path)
        if name == "shard_map":
            return self._shard_map(equation, inputs, path)
        if self.place is not None and name == "axis_index":
            return [Deferred.known(np.int32(self.place.at[equation.params["axis_name"]]), local=True)]
        if self.place is not None and name == MESH_VALUE:
            return [Deferred.known(np.asarray(equation.params["of_mesh"](self.place.mesh), np.int32))]
        if name == "platform_index":  # traced on any platform, it is compiled for TPUs
            platforms = equation.params["platforms"]
            return [
                Deferred.known(
                    np.int32(next(at for at, platform in enumerate(platforms) if not platform or "tpu" in platform))
                )
            ]
        if name in KEEPS_VALUE or name == _IN_MEMORY:
            return inputs
        if name == PRIMITIVE:
            return [self._known_or_typical(equation, inputs[0])]
        if self.place is not None and names_axis(equation):
            return self.peers.received(equation, inputs, path, self.place, self.partition)
        if name != _JIT and not any(map(self._follows, functions_inside(equation))):
            return self.invariants.once(id(equation), inputs, lambda: _evaluated(equation, inputs))
        if name == "scan":
            return self._scan(equation, inputs, path)
        if name == "while":
            return self._while(equation, inputs, path)
        if name == "cond":
            return self._cond(equation, inputs, path)
        if name in CALLS:
            return self.run(called_function(equation), inputs, path, used)
        return self._left_out(equation, f"a {name} around a kernel")

    def _follows(self, function: Any) -> bool:
        """True if a jaxpr has a Pallas call, a `typical` value, or an operation on mesh axes."""
        return any(
            equation.primitive.name in (_PALLAS, PRIMITIVE, MESH_VALUE)
            or (self.place is not None and names_axis(equation))
            for equation in equations(function.jaxpr)
        )

    def _shard_map(self, equation: Any, inputs: list[Deferred], path: tuple[int, ...]) -> list[Deferred]:
        params = equation.params
        place = MeshPlace.of(params["mesh"], self.partition)

        def made_of(values: Sequence[Deferred], specs: Sequence[Any], made: Callable[..., Deferred]) -> list[Deferred]:
            return [
                self.invariants.one((id(equation), made, number), [value], functools.partial(made, value, place, spec))
                for number, (value, spec) in enumerate(zip(values, specs, strict=True))
            ]

        inside = _Walk(self.partition, self.invariants, self.peers, self.executions, place)
        outputs = inside.run(params["jaxpr"], made_of(inputs, params["in_specs"], part_of), path)
        self.chose |= inside.chose
        self.left_out |= inside.left_out
        return made_of(outputs, params["out_specs"], whole_of)

    def _known_or_typical(self, equation: Any, value: Deferred) -> Deferred:
        """Return a value, or its typical value if it is missing."""
        typical = typical_value(equation)
        if value.is_missing:  # on all devices, and in all rounds of a loop, which then share the typical one
            return self.invariants.known(id(equation), typical)
        return known_or(value, typical)

    def _pallas(self, equation: Any, inputs: list[Deferred], path: tuple[int, ...]) -> list[Deferred]:
        kernel = equation.params.get("name") or "in front of it"
        self.executions.append(
            PallasOperands(
                site=path,
                equation=equation,
                shapes=tuple(tuple(atom.aval.shape) for atom in equation.invars),
                operands=tuple(inputs),
            )
        )
        why = f"what the kernel {kernel} computes"
        elements = max(math.prod(atom.aval.shape) for atom in (*equation.invars, *equation.outvars))
        if elements > _MAX_KERNEL_ELEMENTS or not is_interpretable(equation):
            return _missing(equation, why)
        return self.invariants.once(id(equation), inputs, lambda: _evaluated(equation, inputs, interpreted))

    def _scan(self, equation: Any, inputs: list[Deferred], path: tuple[int, ...]) -> list[Deferred]:
        body, constants, carry, sliced = scan_parts(equation, inputs)
        rounds = range(equation.params["length"])
        for i in reversed(rounds) if equation.params["reverse"] else rounds:
            elements = [applied(lambda array, i=i: array[i], value) for value in sliced]
            carry = self.run(body, [*constants, *carry, *elements], path)[: len(carry)]
        rest = equation.outvars[len(carry) :]
        return [*carry, *(Deferred.known(Missing("what a scan around a kernel collects")) for _ in rest)]

    def _while(self, equation: Any, inputs: list[Deferred], path: tuple[int, ...]) -> list[Deferred]:
        condition, body, condition_constants, body_constants, carry = while_parts(equation, inputs)
        for _ in range(_MAX_WHILE_ROUNDS):
            (decides,) = self.run(condition, [*condition_constants, *carry], path)
            self.chose |= decides.local
            goes_on = decides.get()
            if isinstance(goes_on, Missing):
                return self._left_out(equation, goes_on.why)
            if not goes_on:
                return carry
            carry = self.run(body, [*body_constants, *carry], path)
        return self._left_out(equation, f"a loop of more than {_MAX_WHILE_ROUNDS:,} rounds around a kernel")

    def _cond(self, equation: Any, inputs: list[Deferred], path: tuple[int, ...]) -> list[Deferred]:
        self.chose |= inputs[0].local
        chosen = inputs[0].get()
        if isinstance(chosen, Missing):
            return self._left_out(equation, chosen.why)
        branches = functions_inside(equation)
        index = min(max(int(chosen), 0), len(branches) - 1)
        return self.run(branches[index], inputs[1:], (*path, index))

    def _left_out(self, equation: Any, why: str) -> list[Deferred]:
        self.left_out = True
        return _missing(equation, why)


def _used_equations(jaxpr: Any, used: Sequence[bool] | None) -> dict[int, list[bool]]:
    """Return the numbers of the equations that matter, with their used results. The compiler drops the others."""
    live = {atom for at, atom in enumerate(jaxpr.outvars) if not is_literal(atom) and (used is None or used[at])}
    needed: dict[int, list[bool]] = {}
    for number in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[number]
        results = [variable in live for variable in equation.outvars]
        if any(results) or equation.effects:
            needed[number] = results
            live.update(atom for atom in equation.invars if not is_literal(atom))
    return needed


def _missing(equation: Any, why: str) -> list[Deferred]:
    return [Deferred.known(Missing(why)) for _ in equation.outvars]


def _evaluated(
    equation: Any, inputs: Sequence[Deferred], run: Callable[[Any, list[Any]], list[Any]] = computed
) -> list[Deferred]:
    """Return the results of one equation, computed together when the first one is needed."""
    largest = max((math.prod(getattr(atom.aval, "shape", ())) for atom in equation.outvars), default=0)
    if largest > _MAX_ELEMENTS:
        return _missing(equation, f"an array of {largest:,} values, which are too many to follow")

    def compute() -> Any:
        values = [value.get() for value in inputs]
        missing = next((value for value in values if isinstance(value, Missing)), None)
        return run(equation, values) if missing is None else missing

    together = Deferred(compute, inputs)

    def result(at: int) -> Deferred:
        return applied(lambda results: results[at], together)

    return [result(at) for at in range(len(equation.outvars))]
