"""The target of a program: the chip, if tracing knows one, and operations that raise or warn when a program is lowered.

Traced on a machine without a TPU, a program may still be for one elsewhere: that is known when it is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jax
from jax import Array, lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from jax.sharding import get_abstract_mesh

from systolic.chips import CHIPS, Chip
from systolic.compat import low_jaxpr
from systolic.spec import NoKernelWarning, SpecError
from systolic.support.bugs import warn_user


def target_chip() -> Chip | None:
    """Return the TPU that tracing is for: the abstract mesh's, else this process's; None: there is none."""
    device = getattr(get_abstract_mesh(), "abstract_device", None)
    kind = getattr(device, "device_kind", None)
    if kind is None and jax.default_backend() == "tpu":
        kind = jax.devices()[0].device_kind
    return next((chip for chip in CHIPS.values() if chip.device_kind == kind), None)


def explicit_mesh(arrays: Iterable[Array]) -> Any:
    """Return the mesh with explicit axes in the types of arrays; None: there is none."""
    meshes = (jax.typeof(array).sharding.mesh for array in arrays)
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


NO_CHIP = (
    "it was traced where no TPU that systolic knows is in sight; say whose tiles are wanted, as with "
    'chip="v6e", or implementation="xla" where XLA is'
)

_for_a_tpu = Primitive("for_a_tpu")
_for_a_tpu.def_abstract_eval(lambda array: array)
_for_a_tpu.def_impl(lambda array: array)

_without_kernel = Primitive("without_kernel")
_without_kernel.def_abstract_eval(lambda array, *, reason: array)
_without_kernel.def_impl(lambda array, *, reason: array)


def for_a_tpu(array: Array) -> Array:
    """Return the array, in a program for a TPU. Pallas' own refusal of other targets names no other choice.

    Raises:
      SpecError: when the program is lowered for something else.
    """
    return _for_a_tpu.bind(array)


def without_kernel(array: Array, reason: str) -> Array:
    """Return the array, in a program without a kernel; lowering it for a TPU warns with the reason."""
    return _without_kernel.bind(array, reason=reason)


_kernel_or_xla = Primitive("kernel_or_xla")
_kernel_or_xla.multiple_results = True
_kernel_or_xla.def_abstract_eval(lambda *arrays, kernel, xla: kernel.out_avals)
_kernel_or_xla.def_impl(lambda *arrays, kernel, xla: jaxpr_as_fun(kernel)(*arrays))

UNCUT = (
    "it is for several devices, and XLA cannot cut a kernel. Use a mesh with explicit axes, as `jax.make_mesh` makes "
    "it, or `jax.shard_map`"
)


def kernel_or_xla(kernel: Callable[..., Any], xla: Callable[..., Any], *operands: Any) -> Any:
    """Return a kernel's result for these arrays; XLA computes it in a program for something else than a TPU.

    The choice is made when the program is lowered: the same traced function may run on a CPU. XLA also computes it,
    with a warning, in a program for TPUs in which XLA would have to cut the kernel.
    """

    def for_tpus(*operands: Any) -> Any:
        traced, shapes = jax.make_jaxpr(kernel, return_shape=True)(*operands)
        programs = {"kernel": low_jaxpr(traced), "xla": low_jaxpr(jax.make_jaxpr(xla)(*operands))}
        results = _kernel_or_xla.bind(*jax.tree.leaves(operands), **programs)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return lax.platform_dependent(*operands, tpu=for_tpus, default=xla)


def _chosen(context: Any, *arrays: Any, kernel: Any, xla: Any) -> Any:
    if _has_to_be_cut(context):
        warn_user(f"no kernel of systolic's in this program for a TPU: {UNCUT}", NoKernelWarning)
        kernel = xla
    return mlir.lower_fun(jaxpr_as_fun(kernel), multiple_results=True)(context, *arrays)


def _has_to_be_cut(context: Any) -> bool:
    """True if a program is for several devices, and an axis over them is left to XLA."""
    where = context.module_context.axis_context
    mesh = getattr(where, "mesh", None)
    if mesh is not None:
        return any(size > 1 for axis, size in mesh.shape.items() if axis not in where.manual_axes)
    return getattr(where, "num_devices", 1) > 1


def _refused(_context: Any, _array: Any) -> NoReturn:
    raise SpecError(
        'implementation="pallas" runs on a TPU, and this program is not for one; use "interpret" to run the kernel '
        "slowly on a CPU, or None for XLA's product where there is no TPU"
    )


def _uncut(context: Any, array: Any) -> list[Any]:
    if _has_to_be_cut(context):
        raise SpecError(f'implementation="pallas" has no kernel in this program: {UNCUT}')
    return [array]


def _warned(_context: Any, array: Any, *, reason: str) -> list[Any]:
    warn_user(f"no kernel of systolic's in this program for a TPU: {reason}", NoKernelWarning)
    return [array]


mlir.register_lowering(_for_a_tpu, _refused)
mlir.register_lowering(_for_a_tpu, _uncut, platform="tpu")
mlir.register_lowering(_kernel_or_xla, _chosen)
mlir.register_lowering(_without_kernel, lambda _context, array, *, reason: [array])
mlir.register_lowering(_without_kernel, _warned, platform="tpu")
