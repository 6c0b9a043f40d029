"""The programs that `tune` compares: a product's kernel in any configuration, and XLA's, built from its spec."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from systolic.chips import Chip
from systolic.ops.epilogue import ACTIVATIONS, epilogue_of
from systolic.ops.matmul.orientation import Orientation
from systolic.ops.matmul.pallas import by_pallas
from systolic.ops.matmul.product import Product, Where, spec_of
from systolic.ops.matmul.xla import by_xla
from systolic.ops.shapes import fold
from systolic.schedule import KernelConfig
from systolic.spec import MatmulSpec, SpecError

_AROUND = ("bias", "residual", "scale")  # words of `Fusion.epilogue` besides an activation's name


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPrograms:
    """What to compile for a product on a chip.

    Attributes:
      computed: what the kernel computes, whose configurations are searched: with a batch folded into the rows, and
        operands turned, as `systolic.matmul` does it.
      arguments: shapes and dtypes of lhs, rhs and what stands beside them.
    """

    computed: MatmulSpec
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    product: Product

    @classmethod
    def of(cls, spec: MatmulSpec, chip: Chip) -> MatmulPrograms:
        """From the names in `problem.fusion.epilogue`.

        Raises:
          SpecError: the epilogue is not one of `systolic.matmul`'s with an activation that has a name, or an operand
            has a function, which a description does not hold.
        """
        product = _product(spec, chip)
        arguments = _arguments(spec)
        described = spec_of(product, arguments)
        # How many operations an epilogue takes is counted, whatever the description says.
        counted = dataclasses.replace(spec.fusion, epilogue_ops=described.fusion.epilogue_ops)
        spec = dataclasses.replace(spec, fusion=counted)
        if described != spec:
            raise SpecError(f"this product cannot be built from its description: {_difference(spec, described)}")
        folded, _ = jax.eval_shape(lambda *arrays: fold(product.transpose_lhs, product.beside, arrays), *arguments)
        planned = spec_of(product, folded)
        return cls(computed=Orientation.of(planned).spec(planned), arguments=arguments, product=product)

    def kernel(self, config: KernelConfig) -> Callable[..., Any]:
        """The Pallas kernel with this configuration."""
        where = Where(implementation="pallas", chip=self.product.where.chip, tiles=config)
        return functools.partial(_first, by_pallas, dataclasses.replace(self.product, where=where))

    def xla(self) -> Callable[..., Any]:
        """The same by XLA."""
        return functools.partial(_first, by_xla, self.product)


def _first(run: Callable[..., tuple[Any, ...]], product: Product, *arrays: Any) -> Any:
    return run(product, *arrays)[0]


def _product(spec: MatmulSpec, chip: Chip) -> Product:
    fusion = spec.fusion
    words = [word for word in fusion.epilogue.split(", ") if word]
    names = [word for word in words if word not in _AROUND]
    unknown = [word for word in names if word not in ACTIVATIONS]
    if unknown or len(names) > 1:
        known = ", ".join(ACTIVATIONS)
        raise SpecError(f"epilogue {fusion.epilogue!r}: tune can build one activation of {known}")
    if fusion.lhs_fn is not None or fusion.rhs_fn is not None:
        raise SpecError("an operand's function is not part of a product's description; tune without it")
    order = [word for word in ("bias", *names, "residual", "scale") if word in words]
    if words != order or [one.beside for one in fusion.extras] != ["out"] * (len(words) - len(names)):
        raise SpecError(
            f"epilogue {fusion.epilogue!r} with {len(fusion.extras)} arrays beside the product: tune can build a bias, "
            "an activation, a residual and a scale, in this order, with an array for each but the activation"
        )
    if fusion.more_outputs:
        raise SpecError("a product with more than one output cannot be built from its description")
    bias, residual, scale = (word in words for word in _AROUND)
    return Product(
        where=Where(implementation="pallas", chip=chip, tiles=None),
        precision=spec.precision,
        dtypes_out=(spec.dtype_out,),
        epilogue=_epilogue(bias, names[0] if names else "", residual, scale, spec.dtype_out),
        epilogue_name=fusion.epilogue,
        transpose_lhs=spec.transpose_lhs,
        transpose_rhs=spec.transpose_rhs,
        beside=tuple(extra.beside for extra in fusion.extras),
    )


@functools.cache
def _epilogue(bias: bool, activation: str, residual: bool, scale: bool, dtype_out: str) -> Callable[..., Any]:
    return epilogue_of(
        bias=bias,
        activation=ACTIVATIONS[activation] if activation else None,
        residual=residual,
        scale=scale,
        dtype_out=dtype_out,
        keep_sum=False,
    )


def _arguments(spec: MatmulSpec) -> tuple[jax.ShapeDtypeStruct, ...]:
    m, k, n = spec.m, spec.k, spec.n

    def array(matrices: int, rows: int, columns: int, dtype: str) -> jax.ShapeDtypeStruct:
        lead = (matrices,) if spec.batch > 1 else ()
        return jax.ShapeDtypeStruct((*lead, rows, columns), jnp.dtype(dtype))

    found = [
        array(spec.batch_lhs, *((k, m) if spec.transpose_lhs else (m, k)), spec.dtype_lhs),
        array(spec.batch_rhs, *((n, k) if spec.transpose_rhs else (k, n)), spec.dtype_rhs),
    ]
    for extra in spec.fusion.extras:
        rows, columns = m if extra.rows else 1, n if extra.columns else 1
        found.append(array(spec.batch if extra.rows and extra.columns else 1, rows, columns, extra.dtype))
    return tuple(found)


def _difference(asked: MatmulSpec, made: MatmulSpec) -> str:
    names = [name for name in MatmulSpec.__dataclass_fields__ if getattr(asked, name) != getattr(made, name)]
    return "; ".join(f"{name} would be {getattr(made, name)} and not {getattr(asked, name)}" for name in names)
