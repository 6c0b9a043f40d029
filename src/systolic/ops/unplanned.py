"""A warning where a program for a TPU gets XLA's product although nobody asked for it."""

from __future__ import annotations

import warnings
from typing import Any

from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir

from systolic.problem import NoKernelWarning


def without_kernel(array: Array, reason: str) -> Array:
    """The array, in a program without a kernel; where it is lowered for a TPU, a warning gives the reason.

    Only when it is lowered is it known what a traced program is for.
    """
    return _without_kernel.bind(array, reason=reason)


def _warned(_context: Any, array: Any, *, reason: str) -> list[Any]:
    warnings.warn(f"no kernel of systolic's in this program for a TPU: {reason}", NoKernelWarning, stacklevel=2)
    return [array]


_without_kernel = Primitive("without_kernel")
_without_kernel.def_impl(lambda array, *, reason: array)
_without_kernel.def_abstract_eval(lambda array, *, reason: array)
mlir.register_lowering(_without_kernel, lambda _context, array, *, reason: [array])
mlir.register_lowering(_without_kernel, _warned, platform="tpu")
