"""Contents of a compiled program's arguments and of kernels' operands, in the simulator's form."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from systolic.compiler import Deferred, DeviceExecutions, Missing, PallasOperands
from systolic.simulator import HloShape, TopLevelHlo, Unknown, Words, words_of

# Arrays that decide control flow are small; larger ones are not converted to words.
_MAX_ELEMENTS = 1 << 20

_Key = tuple[tuple[int, ...], ...]  # shapes of a kernel's operands

OperandKey = tuple[str, int, int]  # operation, which call of it from 0, which operand
Contents = Callable[[], Words | Unknown]


class DeviceContents(Protocol):
    """Known contents of the program's arguments and of kernels' operands on one device."""

    @property
    def parameters(self) -> Sequence[Words | Unknown]:
        """Contents of the program's arguments."""
        ...

    def operand_words(self, name: str, call: int, index: int) -> Contents | None:
        """Contents of an operand; see `KernelContents.operand_words`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramContents:
    """The contents of arguments that a compiled program needs to run again, as words."""

    parameters: tuple[Words | Unknown, ...]  # contents of the program's arguments
    # Contents of kernels' operands that the program's own copies do not bring.
    operands: Mapping[OperandKey, Words | Unknown]

    def operand_words(self, name: str, call: int, index: int) -> Contents | None:
        """Contents of an operand, as `KernelContents.operand_words` gave them."""
        words = self.operands.get((name, call, index))
        return None if words is None else lambda: words


def parameter_contents(hlo: TopLevelHlo, values: Sequence[np.ndarray | None]) -> list[Words | Unknown]:
    """Return the program's arguments as words of memory; None is an argument with a shape only."""
    result: list[Words | Unknown] = []
    for number, value in enumerate(values):
        parameter = hlo.parameters.get(number)
        name = parameter.name if parameter is not None else str(number)
        if value is None:
            why = f"argument {name}, of which only the shape was given"
            result.append(Unknown(why, computed=False, argument=number))
        elif value.size > _MAX_ELEMENTS or parameter is None or parameter.shape is None:
            result.append(
                Unknown(
                    f"argument {name}, of which {value.size:,} values are too many to follow",
                    computed=False,
                    argument=number,
                )
            )
        else:
            words = words_of(value, parameter.shape)
            result.append(
                Unknown(f"argument {name}, {words.why}", computed=False, argument=number)
                if isinstance(words, Unknown)
                else words
            )
    return result


class KernelContents:
    """Contents of kernels' operands.

    The compiled program identifies a kernel by the name of its operation, the traced function by its position. Calls
    with the same operand shapes are matched in order, because the compiler mostly numbers operations in the function's
    order. If the compiler has more or fewer of them than the function, or calls one more often, an operand is known
    only if it is the same in all of them.

    `executions` returns every execution of a Pallas call on this device, when the first kernel runs. Contents that are
    the same on all devices are computed once, by `first`, the contents of another device.
    """

    def __init__(
        self, hlo: TopLevelHlo, executions: Callable[[], DeviceExecutions], first: KernelContents | None = None
    ) -> None:
        self._hlo = hlo
        self._executions = executions
        self._first = first
        self._found: dict[OperandKey, Contents | None] = {}
        self._local: set[OperandKey] = set()
        self._words: dict[tuple[Deferred, HloShape], Contents] = {}  # calls of a loop may share an operand
        # All devices may have the same.
        self._laid_out: dict[tuple[object, ...], Words | Unknown] = {} if first is None else first._laid_out

    def operand_words(self, name: str, call: int, index: int) -> Contents | None:
        """Contents of operand `index` of the operation `name` in its call number `call`, from 0.

        None if the program's own copies bring the contents.
        """
        if name not in self._hlo.kernels:
            return None
        key = name, call, index
        if self._first is not None:
            words = self._first.operand_words(*key)
            if key not in self._first._local:
                return words
            if words is not None and not self._first._executed.local and key not in self._found:
                # The same call, but its operand differs by device: this device's operand is computed on request.
                self._found[key] = functools.cache(lambda: self._contents(*key))
        if key not in self._found:
            self._found[key] = self._looked_up(*key)
        return self._found[key]

    def _contents(self, name: str, call: int, index: int) -> Words | Unknown:
        contents = self._looked_up(name, call, index)
        assert contents is not None  # as on the first device
        return contents()

    def _looked_up(self, name: str, call: int, index: int) -> Contents | None:
        shape = self._hlo.operand_shape(name, index)
        if shape is None:
            return None
        if math.prod(shape.sizes) > _MAX_ELEMENTS:
            return None
        if self._executed.local:
            self._local.add((name, call, index))
        sites = self._sites.get(self._key(name))
        names = self._names[self._key(name)]
        if sites is None:
            return None
        calls = sites[names.index(name)] if len(sites) == len(names) else []
        if call < len(calls):
            operand = calls[call].operands[index]
        elif not self._executed.complete:
            return None
        else:
            # The compiler has merged, copied or reordered calls (the bodies of loops are numbered from
            # the last one on): which one this is is not known, but the contents that all agree on are.
            operand = _alike([call.operands[index] for calls in sites for call in calls])
        if operand is None:
            return None
        if operand.local:
            self._local.add((name, call, index))

        @functools.cache
        def words() -> Words | Unknown:
            value = operand.get()
            return (
                Unknown(value.why, computed=False, argument=value.argument)
                if isinstance(value, Missing)
                else self._laid_out_once(np.asarray(value), shape)
            )

        return self._words.setdefault((operand, shape), words)

    def _laid_out_once(self, array: np.ndarray, shape: HloShape) -> Words | Unknown:
        key = shape, array.shape, array.dtype.name, hashlib.sha256(array.tobytes()).digest()
        if key not in self._laid_out:
            self._laid_out[key] = words_of(array, shape)
        return self._laid_out[key]

    def _key(self, name: str) -> _Key:
        shapes = (self._hlo.shapes.get(operand) for operand in self._hlo.operands[name])
        return tuple(shape.sizes if shape is not None else () for shape in shapes)

    @functools.cached_property
    def _names(self) -> dict[_Key, list[str]]:
        """Kernels by the shapes of their operands, in the order in which the compiler numbered them."""
        result: dict[_Key, list[str]] = {}
        for name in sorted(self._hlo.kernels, key=_natural):
            result.setdefault(self._key(name), []).append(name)
        return result

    @functools.cached_property
    def _executed(self) -> DeviceExecutions:
        return self._executions()

    @functools.cached_property
    def _sites(self) -> dict[_Key, list[list[PallasOperands]]]:
        """Executions by the shapes of their operands, then by the place in the function, in order."""
        result: dict[_Key, dict[tuple[int, ...], list[PallasOperands]]] = {}
        for execution in self._executed.executions:
            result.setdefault(execution.shapes, {}).setdefault(execution.site, []).append(execution)
        return {key: list(sites.values()) for key, sites in result.items()}


class RecordedContents:
    """Pass on a device's contents, and record all operands that a run requests."""

    def __init__(self, contents: DeviceContents) -> None:
        self._contents = contents
        self.parameters = contents.parameters
        self.operands: dict[OperandKey, Words | Unknown] = {}

    def operand_words(self, name: str, call: int, index: int) -> Contents | None:
        """Contents of an operand; see `KernelContents.operand_words`."""
        contents = self._contents.operand_words(name, call, index)
        if contents is None:
            return None
        key = (name, call, index)
        why = f"operand {index} of {name}, which the run that prepared the program did not need"
        self.operands.setdefault(key, Unknown(why, computed=False))

        def words() -> Words | Unknown:
            self.operands[key] = contents()
            return self.operands[key]

        return words


def _alike(operands: Sequence[Deferred]) -> Deferred | None:
    """Return any of several operands, if all are known to be the same."""
    first, *others = (operand.get() for operand in operands)
    same = not isinstance(first, Missing) and all(
        not isinstance(other, Missing) and np.array_equal(first, other) for other in others
    )
    return operands[0] if same else None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Split a name into parts, numbers by their size."""
    parts = re.split(r"(\d+)", name)
    numbers = [part.lstrip("0") if part.isdecimal() else None for part in parts]
    return tuple((-1, part) if n is None else (len(n), n) for n, part in zip(numbers, parts, strict=True))
