"""`systolic.Quantized`: values of a few bits, and their scales."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from systolic.spec.formats import LARGEST, QuantizationError

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import DTypeLike
    from jaxtyping import Shaped


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """An array that represents `values · scales`, where each scale belongs to a block of values.

    It is a pytree of both arrays: it goes through `jit`, `vmap`, `scan` and checkpoints like any other. `quantize`
    makes it, `dequantize` undoes it, `systolic.matmul` multiplies with it.

    Attributes:
      values: [..., k, n] int8, int4, float8_e4m3fn, float8_e5m2, float8_e4m3b11fnuz or float4_e2m1fn.
      scales: float32 or bfloat16, with the same number of dimensions. Each size divides the values' size: of a weight
        [k, n], [1, 1] is one scale for all, [1, n] one a column, [k / 128, n] one for 128 rows of a column, and
        [k / 128, n / 128] one for a square of 128 × 128.

    Raises:
      QuantizationError: another dtype, or sizes that do not divide.
    """

    values: Any
    scales: Any

    def __post_init__(self) -> None:
        _register()
        require_quantized(self)

    def __reduce__(self) -> tuple[type[Quantized], tuple[Any, Any]]:
        return type(self), (self.values, self.scales)  # a worker that unpickles it needs it to be a pytree too

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.values.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of values that share a scale along each dimension."""
        pairs = zip(self.values.shape, self.scales.shape, strict=True)
        return tuple(size // max(part, 1) for size, part in pairs)

    @property
    def mT(self) -> Quantized:  # noqa: N802  as jax.Array has it
        """The transpose of the last two dimensions."""
        return Quantized(self.values.mT, self.scales.mT)

    def dequantize(self, dtype: DTypeLike = "float32") -> Shaped[Array, ...]:
        """Return `values · scales` in floats; see `systolic.dequantize`."""
        import jax.numpy as jnp

        require_quantized(self)
        scales, blocks = self.scales.astype(jnp.float32), self.blocks
        if self.ndim and 1 < scales.shape[-1] < self.shape[-1]:
            # Values in blocks of columns would need another layout on a TPU: XLA copies them, in float32.
            scales, blocks = jnp.repeat(scales, blocks[-1], axis=-1), (*blocks[:-1], 1)
        values = self.values.astype(jnp.float32).reshape(split_shape(self.shape, blocks))
        scales = scales.reshape(split_shape(scales.shape, (1,) * self.ndim))
        return (values * scales).reshape(self.shape).astype(dtype)


def require_quantized(array: Quantized) -> None:
    """Raise unless the two arrays are codes of a format and scales of blocks of them.

    JAX rebuilds a pytree with anything in it, such as both arrays cast to bfloat16, so the constructor has not checked
    every instance: every reader calls this first.

    Raises:
      QuantizationError: these are not arrays, or have other dtypes, or shapes that do not match.
    """
    for name, part in (("values", array.values), ("scales", array.scales)):
        if not hasattr(part, "dtype") or not hasattr(part, "shape"):
            raise QuantizationError(f"{name} is a {type(part).__name__}, not an array; use jnp.asarray")
    # Names of dtypes, also of those that NumPy lacks: a key's has one too.
    values, scales = (str(getattr(part.dtype, "name", part.dtype)) for part in (array.values, array.scales))
    if values not in LARGEST:
        raise QuantizationError(
            f"values are {values}; use one of {', '.join(LARGEST)}. To cast the scales alone use "
            "Quantized(q.values, q.scales.astype(dtype)); for floats use q.dequantize(dtype)"
        )
    if scales not in ("float32", "bfloat16"):
        raise QuantizationError(f"scales are {scales}; use float32 or bfloat16")
    sizes, parts = tuple(array.values.shape), tuple(array.scales.shape)
    if len(sizes) != len(parts) or not all(map(_divides, parts, sizes)):
        raise QuantizationError(
            f"scales of shape {list(parts)} do not go with values of {list(sizes)}: they need as many dimensions, "
            "and each size has to divide that of the values"
        )


def _divides(part: int, size: int) -> bool:
    return size % part == 0 and (size > 0 or part == 1) if part else size == 0


@functools.cache
def _register() -> None:
    """Register the class with JAX at its first instance, so that `import systolic` need not import JAX."""
    import jax

    def unflatten(_: None, children: Iterable[Any]) -> Quantized:
        quantized = object.__new__(Quantized)  # JAX puts anything there, also what has no shape
        for name, child in zip(("values", "scales"), children, strict=True):
            object.__setattr__(quantized, name, child)
        return quantized

    key = jax.tree_util.GetAttrKey
    jax.tree_util.register_pytree_with_keys(
        Quantized,
        lambda quantized: (((key("values"), quantized.values), (key("scales"), quantized.scales)), None),
        unflatten,
        lambda quantized: ((quantized.values, quantized.scales), None),
    )


def from_qwix(array: Any) -> Quantized:
    """Convert a `qwix.QArray`, or anything with its `qvalue`, `scale` and `zero_point`, without importing qwix.

    Raises:
      QuantizationError: it has a zero point, which no kernel takes, or is not a QArray.
    """
    if not is_qarray(array):
        raise QuantizationError(f"a {type(array).__name__} has no qvalue and scale; use a qwix.QArray")
    if getattr(array, "zero_point", None) is not None:
        raise QuantizationError(
            "the QArray has a zero_point; quantize symmetrically, without one, or multiply qwix.dequantize(array)"
        )
    return Quantized(array.qvalue, array.scale)


def to_qwix(array: Quantized) -> Any:
    """Convert a `Quantized` to a `qwix.QArray`.

    Raises:
      ImportError: qwix is not installed.
      QuantizationError: the arrays were cast or cut so that they are not codes and scales.
    """
    import qwix  # pyright: ignore[reportMissingImports]

    require_quantized(array)
    return qwix.QArray(qvalue=array.values, scale=array.scales)


def is_qarray(value: Any) -> bool:
    return hasattr(value, "qvalue") and hasattr(value, "scale")


def split_shape(shape: Sequence[int], blocks: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with two dimensions for each dimension: the number of the block, and the place in it."""
    pairs = zip(shape, blocks, strict=True)
    return tuple(part for size, block in pairs for part in (size // max(block, 1), block))
