"""One product with everything that is fused into it, by XLA or by Pallas, for any number of batch dimensions.

All arrays of a product have the same number of dimensions: those of the batch, each as long as the batch's or 1, then
two of a matrix, or of a row, a column, or one element beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.compat import interpret_mode_is_forced, interpreted_effects
from systolic.kernels.blocked import blocked_matmul
from systolic.kernels.interpreted import as_traceable, tracing_for
from systolic.kernels.step import Functions
from systolic.kernels.streamed import streamed_matmul
from systolic.ops.epilogue import Work, operand_fn, work_of
from systolic.ops.linear import floating, linear, perturbed
from systolic.ops.lowering import for_a_tpu, without_kernel
from systolic.ops.planning import plan
from systolic.ops.shapes import fold, is_symbolic
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import Extra, Fusion, MatmulSpec, PrecisionName, Side, SpecError

Implementation = Literal["pallas", "xla", "interpret"] | pltpu.InterpretParams | None
Fn = Callable[..., Any]

_NO_CHIP = (
    "it was traced where no TPU that systolic knows is in sight; say whose tiles are wanted, as with "
    'chip="v6e", or implementation="xla" where XLA is'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """By what a product is computed."""

    implementation: Implementation  # None: Pallas where the program runs on a TPU, else XLA
    chip: Chip | None  # whose tiles; None where no TPU is in sight and nobody asked for one
    tiles: Tiles | KernelConfig | None

    @property
    def effects(self) -> frozenset[Any]:
        """JAX's effects of a product."""
        return interpreted_effects() if _interpret(self.implementation) else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """outs = epilogue(lhs_fn(lhs) @ rhs_fn(rhs)): all that is static about it."""

    where: Where
    precision: PrecisionName
    dtypes_out: tuple[str, ...]
    epilogue: Fn  # of the sum and the extras beside the output, one result for each of `dtypes_out`
    epilogue_name: str = ""
    transpose_lhs: bool = False
    transpose_rhs: bool = False
    lhs_fn: Fn | None = None  # of lhs and the extras beside it
    rhs_fn: Fn | None = None
    beside: tuple[Side, ...] = ()  # for each extra


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def compute(product: Product, *arrays: Array) -> tuple[Array, ...]:
    """All outputs, each [*batch, m, n]; differentiable in both modes, any number of times, by XLA.

    Args:
      arrays: lhs, rhs and the extras, as the module says.
    """
    return _batched(product, *arrays)


@functools.partial(compute.defjvp, symbolic_zeros=True)
def _compute_tangent(
    product: Product, arrays: tuple[Array, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
    outs = compute(product, *arrays)
    return outs, linear(_Tangent(product=product), arrays, perturbed(tangents), outs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tangent:
    """The derivative of a product. `matmul` has one of its own, so this is only that of a derivative."""

    product: Product

    @property
    def effects(self) -> frozenset[Any]:
        return frozenset()

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        fn, at = self._of(residuals, arguments)
        return jax.jvp(fn, at, tuple(argument for argument in arguments if argument is not None))[1]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        fn, at = self._of(residuals, arguments)
        found = iter(jax.vjp(fn, *at)[1](tuple(cotangents)))
        return [None if argument is None else next(found) for argument in arguments]

    def _of(self, arrays: Sequence[Array], wanted: Sequence[Any]) -> tuple[Fn, tuple[Array, ...]]:
        """The product as a function of some of its arrays, and these."""

        def fn(*some: Array) -> tuple[Array, ...]:
            given = iter(some)
            all_of_them = [old if one is None else next(given) for old, one in zip(arrays, wanted, strict=True)]
            return floating(by_xla(self.product, *all_of_them))

        return fn, tuple(array for array, one in zip(arrays, wanted, strict=True) if one is not None)


def _batched(product: Product, *arrays: Array) -> tuple[Array, ...]:
    @custom_vmap
    def call(*arrays: Array) -> tuple[Array, ...]:
        return _dispatched(product, arrays)

    @call.def_vmap
    def _(_size: int, mapped: Sequence[bool], *arrays: Array) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        # One more batch dimension, of length 1 for arrays that are the same for all.
        wider = [array if is_mapped else array[None] for array, is_mapped in zip(arrays, mapped, strict=True)]
        return _batched(product, *wider), (True,) * len(product.dtypes_out)

    return call(*arrays)


def _dispatched(product: Product, arrays: Sequence[Array]) -> tuple[Array, ...]:
    where = product.where
    if where.implementation == "xla" or any(0 in array.shape for array in arrays):
        return by_xla(product, *arrays)
    if is_symbolic(arrays):
        return by_xla(product, _unplanned(where, arrays), *arrays[1:])
    if where.chip is None:
        return by_xla(product, without_kernel(arrays[0], _NO_CHIP), *arrays[1:])
    if where.implementation is None:
        # Decided when the program is lowered: the same traced function may run on a CPU.
        return lax.platform_dependent(
            *arrays, tpu=functools.partial(by_pallas, product), default=functools.partial(by_xla, product)
        )
    return by_pallas(product, *arrays)


def _unplanned(where: Where, arrays: Sequence[Array]) -> Array:
    shapes = " and ".join(f"[{', '.join(map(str, array.shape))}]" for array in arrays[:2])
    if where.implementation is not None:
        raise SpecError(
            f"implementation={where.implementation!r} with operands of {shapes}: tiles are chosen for sizes that are "
            "numbers. Leave it out, and XLA multiplies, or export once for each size"
        )
    return without_kernel(arrays[0], f"tiles are chosen for sizes that are numbers, and operands are {shapes}")


def by_xla(product: Product, *arrays: Array) -> tuple[Array, ...]:
    """The product as plain JAX operations."""
    lhs, rhs, *_ = arrays
    extras = _extras(product, arrays)
    if product.lhs_fn is not None:
        lhs = product.lhs_fn(lhs, *extras["lhs"])
    if product.rhs_fn is not None:
        rhs = product.rhs_fn(rhs, *extras["rhs"])
    # Only dtypes are wanted: sizes may be symbols.
    spec = spec_of(product, [jax.ShapeDtypeStruct((1,) * array.ndim, array.dtype) for array in arrays])
    operands = [array.astype(spec.dtype_multiplied) for array in (lhs, rhs)]
    if product.transpose_lhs:
        operands[0] = operands[0].mT
    if product.transpose_rhs:
        operands[1] = operands[1].mT
    with jax.named_scope("systolic.matmul"):
        total = jnp.matmul(
            *operands,
            precision=lax.Precision[product.precision.upper()],
            preferred_element_type=jnp.dtype(spec.dtype_accumulator),
        )
        outs = product.epilogue(total, *extras["out"])
    return tuple(out.astype(dtype) for out, dtype in zip(outs, product.dtypes_out, strict=True))


@functools.partial(jax.jit, static_argnums=0)
def by_pallas(product: Product, *arrays: Array) -> tuple[Array, ...]:
    """The product by the Pallas kernel, with the tiles of `plan`."""
    if product.where.implementation == "pallas" and not interpret_mode_is_forced():
        arrays = (for_a_tpu(arrays[0]), *arrays[1:])
    chip = product.where.chip
    assert chip is not None  # else it is computed by XLA
    # A TPU's scalar unit has 32 bits, and so has every number in a kernel: its own, those of Pallas' pipelines, and
    # what functions of users make of Python's.
    with jax.enable_x64(False), tracing_for(chip):
        return _by_pallas(product, arrays, chip)


def _by_pallas(product: Product, arrays: Sequence[Array], chip: Chip) -> tuple[Array, ...]:
    folded, batch = fold(product.transpose_lhs, product.beside, arrays)
    spec = spec_of(product, folded)
    chosen = plan(spec, chip, tiles=product.where.tiles)
    transcendentals = _epilogue_work(product).transcendentals * spec.batch * spec.m * spec.n
    lhs, rhs, *extras = chosen.orientation.arrays(folded, product.beside)
    swap = chosen.orientation.swap
    kernel = streamed_matmul if chosen.kernel == "streamed" else functools.partial(blocked_matmul, chip=chip)
    outs = kernel(
        lhs,
        rhs,
        extras,
        spec=chosen.computed,
        functions=Functions(
            epilogue=product.epilogue,
            lhs_fn=product.rhs_fn if swap else product.lhs_fn,
            rhs_fn=product.lhs_fn if swap else product.rhs_fn,
            transcendentals=transcendentals,
        ),
        config=as_traceable(chosen.config),
        vmem_limit_bytes=chosen.vmem_limit_bytes,
        interpret=_interpret(product.where.implementation),
    )
    outs = tuple(out.mT for out in outs) if swap else outs
    return tuple(out.reshape(*batch, -1, out.shape[-1]) for out in outs) if batch is not None else outs


def _interpret(implementation: Implementation) -> bool | pltpu.InterpretParams:
    if implementation is None or implementation in ("pallas", "xla"):
        return False
    return pltpu.InterpretParams() if isinstance(implementation, str) else implementation


def spec_of(product: Product, arrays: Sequence[Any]) -> MatmulSpec:
    """Sizes and dtypes of a product of these arrays, or shapes, as the planner takes them."""
    lhs, rhs, *extras = arrays
    m, k = lhs.shape[-2:][:: -1 if product.transpose_lhs else 1]
    n = rhs.shape[-2 if product.transpose_rhs else -1]
    batch = math.prod(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays), strict=True))
    found = []
    for side, extra in zip(product.beside, extras, strict=True):
        rows, columns = {"lhs": lhs.shape[-2:], "rhs": rhs.shape[-2:], "out": (m, n)}[side]
        found.append(
            Extra(
                beside=side,
                rows=extra.shape[-2] == rows and rows > 1,
                columns=extra.shape[-1] == columns and columns > 1,
                dtype=extra.dtype.name,
            )
        )
    by_side = _extras(product, arrays)
    fusion = Fusion(
        extras=tuple(found),
        lhs_fn=operand_fn(product.lhs_fn, lhs, by_side["lhs"]),
        rhs_fn=operand_fn(product.rhs_fn, rhs, by_side["rhs"]),
        epilogue=product.epilogue_name,
        epilogue_ops=_epilogue_work(product).ops,
        more_outputs=product.dtypes_out[1:],
    )
    return MatmulSpec(
        m=max(m, 1),
        k=max(k, 1),
        n=max(n, 1),
        dtype_lhs=lhs.dtype.name,
        dtype_rhs=rhs.dtype.name,
        dtype_out=product.dtypes_out[0],
        batch=max(batch, 1),
        batch_lhs=max(math.prod(lhs.shape[:-2]), 1),
        batch_rhs=max(math.prod(rhs.shape[:-2]), 1),
        transpose_lhs=product.transpose_lhs,
        transpose_rhs=product.transpose_rhs,
        precision=product.precision,
        fusion=fusion,
    )


def _extras(product: Product, arrays: Sequence[Any]) -> dict[Side, list[Any]]:
    found: dict[Side, list[Any]] = {"lhs": [], "rhs": [], "out": []}
    for side, extra in zip(product.beside, arrays[2:], strict=True):
        found[side].append(extra)
    return found


@functools.lru_cache(maxsize=1024)
def _epilogue_work(product: Product) -> Work:
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return work_of(product.epilogue, tile, *(tile for side in product.beside if side == "out"))
