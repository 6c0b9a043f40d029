"""An operation that does nothing, and refuses to be lowered for anything but a TPU.

Whether `implementation="pallas"` can run is known when the program is lowered: traced on a machine without a TPU it may
be for one elsewhere. Pallas' own refusal names neither the argument nor another choice.
"""

from __future__ import annotations

from typing import Any, NoReturn

from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir

from systolic.problem import ProblemError

_for_a_tpu = Primitive("for_a_tpu")
_for_a_tpu.def_abstract_eval(lambda array: array)
_for_a_tpu.def_impl(lambda array: array)


def for_a_tpu(array: Array) -> Array:
    """The array, in a program that is for a TPU.

    Raises:
      ProblemError: when the program is lowered, if it is for something else.
    """
    return _for_a_tpu.bind(array)


def _refused(_context: Any, _array: Any) -> NoReturn:
    raise ProblemError(
        'implementation="pallas" runs on a TPU, and this program is not for one; use "interpret" to run the kernel '
        "slowly on a CPU, or None for XLA's product where there is no TPU"
    )


mlir.register_lowering(_for_a_tpu, _refused)
mlir.register_lowering(_for_a_tpu, lambda _context, array: [array], platform="tpu")
