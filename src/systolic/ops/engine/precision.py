"""Precisions as JAX spells them, by the number of bfloat16 passes that a TPU takes for float32."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from systolic.spec import PASSES, PrecisionName, SpecError
from systolic.support.choices import unknown_name

_BFLOAT16, _FLOAT32 = np.dtype("bfloat16"), np.dtype("float32")
# Strings are the names of `jax.lax.Precision` and of presets. libtpu 0.0.42.1 compiles these presets to the same
# passes as these precisions; for the others, which no TPU has, it says "Dot algorithm … is not supported".
_PRECISIONS: dict[str, PrecisionName] = {
    "default": "default",
    "fastest": "default",
    "bfloat16": "default",
    "bf16_bf16_f32": "default",
    "high": "high",
    "tensorfloat32": "high",
    "bfloat16_3x": "high",
    "bf16_bf16_f32_x3": "high",
    "highest": "highest",
    "float32": "highest",
    "bf16_bf16_f32_x6": "highest",
}
_ALGORITHMS: dict[lax.DotAlgorithm, PrecisionName] = {
    lax.DotAlgorithm(_BFLOAT16, _BFLOAT16, _FLOAT32, num_primitive_operations=PASSES[name]): name for name in PASSES
}
_CHOICES = ("default", "high", "highest")
_MEANING = ", of one, three and six bfloat16 passes"
_FIX = f"choose from {', '.join(_CHOICES)}{_MEANING}"


def precision_named(precision: Any) -> PrecisionName:
    """Return the name of a precision as `jax.numpy` takes it; for None, of `jax.default_matmul_precision`.

    Raises:
      SpecError: this is not a precision, or one that no TPU has.
    """
    source = "precision"
    if precision is None:
        source, precision = "jax.default_matmul_precision", getattr(jax.config, "jax_default_matmul_precision", None)
    if precision is None:
        return "default"
    if isinstance(precision, lax.DotAlgorithm):
        lhs, rhs, accumulator = (np.dtype(dtype) for dtype in precision[:3])
        if (algorithm := lax.DotAlgorithm(lhs, rhs, accumulator, *precision[3:])) in _ALGORITHMS:
            return _ALGORITHMS[algorithm]
        raise SpecError(f"{source}={precision}: no TPU has this algorithm; {_FIX}")
    if isinstance(precision, (tuple, list)) and len(precision) == 2:
        lhs_name, rhs_name = map(precision_named, precision)
        if lhs_name != rhs_name:
            raise SpecError(f"{source}={precision!r} differs between the operands; {_FIX}, for both")
        return lhs_name
    name = precision.name if isinstance(precision, (lax.Precision, lax.DotAlgorithmPreset)) else precision
    if isinstance(name, str) and name.lower() in _PRECISIONS:
        return _PRECISIONS[name.lower()]
    if isinstance(name, str) and name.upper() in lax.DotAlgorithmPreset.__members__:
        raise SpecError(f"{source}={name}: no TPU has this algorithm; {_FIX}")
    raise SpecError(unknown_name(f"{source}=", name, _CHOICES, aliases=_PRECISIONS) + _MEANING)


def is_precision(precision: Any) -> bool:
    """True if the kernel has such a precision: one for both operands, and an algorithm of a TPU."""
    try:
        precision_named(precision)
    except SpecError:
        return False
    return True
