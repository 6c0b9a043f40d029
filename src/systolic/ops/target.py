"""What a program is for: the chip, where tracing knows one, and operations that speak up when a program is lowered.

Traced on a machine without a TPU, a program may still be for one elsewhere: that is known when it is lowered.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import get_abstract_mesh

from systolic.bugs import warn_user
from systolic.chips import CHIPS, Chip
from systolic.spec import NoKernelWarning, SpecError


def target_chip() -> Chip | None:
    """The TPU that tracing is for: the abstract mesh's, else that of this process; None where there is none."""
    device = getattr(get_abstract_mesh(), "abstract_device", None)
    kind = getattr(device, "device_kind", None)
    if kind is None and jax.default_backend() == "tpu":
        kind = jax.devices()[0].device_kind
    return next((chip for chip in CHIPS.values() if chip.device_kind == kind), None)


_for_a_tpu = Primitive("for_a_tpu")
_for_a_tpu.def_abstract_eval(lambda array: array)
_for_a_tpu.def_impl(lambda array: array)

_without_kernel = Primitive("without_kernel")
_without_kernel.def_abstract_eval(lambda array, *, reason: array)
_without_kernel.def_impl(lambda array, *, reason: array)


def for_a_tpu(array: Array) -> Array:
    """The array, in a program that is for a TPU. Pallas' own refusal of another one names no other choice.

    Raises:
      SpecError: when the program is lowered, if it is for something else.
    """
    return _for_a_tpu.bind(array)


def without_kernel(array: Array, reason: str) -> Array:
    """The array, in a program without a kernel; where it is lowered for a TPU, a warning gives the reason."""
    return _without_kernel.bind(array, reason=reason)


def _refused(_context: Any, _array: Any) -> NoReturn:
    raise SpecError(
        'implementation="pallas" runs on a TPU, and this program is not for one; use "interpret" to run the kernel '
        "slowly on a CPU, or None for XLA's product where there is no TPU"
    )


def _warned(_context: Any, array: Any, *, reason: str) -> list[Any]:
    warn_user(f"no kernel of systolic's in this program for a TPU: {reason}", NoKernelWarning)
    return [array]


mlir.register_lowering(_for_a_tpu, _refused)
mlir.register_lowering(_for_a_tpu, lambda _context, array: [array], platform="tpu")
mlir.register_lowering(_without_kernel, lambda _context, array, *, reason: [array])
mlir.register_lowering(_without_kernel, _warned, platform="tpu")
