"""Read the arguments of a recorded operation: text such as "bf16[1024,768]" is an array."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from systolic.support.choices import unknown_name
from systolic.support.untrusted import shown
from systolic.validation.errors import OpError

_ARRAY = re.compile(r"([a-z]\w{1,12})\[((?:\d{1,10}(?:,\d{1,10}){0,7})?)\]", re.ASCII)
_MAX_ELEMENTS = 2**40
_DTYPES = {
    "bool": "bool",
    **{f"{letter}{bits}": f"{name}{bits}" for letter, name in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f8_e4m3fn": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f4_e2m1fn": "float4_e2m1fn",
}
_DEFAULT = (jax.lax.Precision.DEFAULT, jax.lax.Precision.DEFAULT)

DotPrecision = jax.lax.DotAlgorithmPreset | tuple[jax.lax.Precision, jax.lax.Precision]


def array_of(text: object) -> jax.ShapeDtypeStruct | None:
    """Return the array that a text describes; None if it describes none."""
    match = _ARRAY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in _DTYPES:
        return None
    shape = tuple(int(size) for size in match[2].split(",") if size)
    if math.prod(shape) > _MAX_ELEMENTS:
        raise OpError(f"{shown(text)} has more elements than any device holds")
    return jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[match[1]]))


def array_sizes(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the sizes of all arrays of an operation, one after the other."""
    arrays = [array for value in arguments.values() if (array := array_of(value)) is not None]
    return tuple(max(1, size) for array in arrays for size in array.shape)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a recorded operation, by name. A missing or wrong value raises an `OpError`."""

    values: Mapping[str, Any]

    def only(self, *names: str) -> None:
        """Refuse arguments that are set and have another name: the program would be another one."""
        neutral = (None, False, 0.0)
        if others := [name for name, value in self.values.items() if name not in names and value not in neutral]:
            raise OpError(f"{others[0]}={shown(self.values[others[0]])} is not known for this operation")

    def array(self, name: str, rank: int | None = None) -> jax.ShapeDtypeStruct:
        result = array_of(self.values.get(name))
        if result is None or rank not in (None, len(result.shape)):
            dimensions = f" with {rank} dimensions" if rank is not None else ""
            raise OpError(f"{name}={shown(self.values.get(name))} is not an array{dimensions}, such as 'bf16[8,128]'")
        return result

    def array_or_none(self, name: str) -> jax.ShapeDtypeStruct | None:
        return None if self.values.get(name) is None else self.array(name)

    def arrays(self, name: str) -> tuple[jax.ShapeDtypeStruct, ...]:
        parts = self.values.get(name)
        result = [array_of(part) for part in parts] if isinstance(parts, list) else [None]
        if None in result:
            raise OpError(f"{name}={shown(parts)} is not a list of arrays")
        return tuple(part for part in result if part is not None)

    def flag(self, name: str) -> bool:
        return self._of_type(name, bool, "true or false")

    def number(self, name: str) -> float:
        return float(self._of_type(name, (int, float), "number"))

    def whole(self, name: str) -> int:
        return self._of_type(name, int, "whole number")

    def text(self, name: str, *names: str) -> str:
        value = self.values.get(name)
        if value not in names:
            raise OpError(unknown_name(f"{name}=", value, names))
        return str(value)

    def precision(self, name: str) -> DotPrecision:
        """Return a product's precision: a name of `jax.lax.DotAlgorithmPreset`, or the default of both operands."""
        return _precision(name, self.values.get(name))

    def precisions(self, name: str) -> tuple[DotPrecision, DotPrecision]:
        """Return the precisions of two products."""
        pair = self.values.get(name)
        if not isinstance(pair, list) or len(pair) != 2:
            raise OpError(f"{name}={shown(pair)} is not a pair of precisions")
        return _precision(name, pair[0]), _precision(name, pair[1])

    def _of_type(self, name: str, kind: Any, words: str) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise OpError(f"{name}={shown(value)} is not a {words}")
        return value


def _precision(name: str, value: object) -> DotPrecision:
    if value in (None, ["DEFAULT", "DEFAULT"]):
        return _DEFAULT
    if isinstance(value, str) and value in jax.lax.DotAlgorithmPreset.__members__:
        return jax.lax.DotAlgorithmPreset[value]
    raise OpError(f"{name}={shown(value)} is not a known precision, such as 'BF16_BF16_F32'")
