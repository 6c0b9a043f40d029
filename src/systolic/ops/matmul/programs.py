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
from systolic.kernels.functions import Functions
from systolic.ops.epilogue import ACTIVATIONS
from systolic.ops.matmul.orientation import Orientation
from systolic.ops.matmul.pallas import by_pallas
from systolic.ops.matmul.product import Backend, Product, epilogue_work, spec_of
from systolic.ops.matmul.xla import by_xla
from systolic.ops.shapes import fold
from systolic.schedule import KernelConfig
from systolic.spec import FusedOperand, MatmulSpec, Operands, SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPrograms:
    """What to compile for a product on a chip.

    Attributes:
      computed: what the kernel computes, whose configurations are searched: with a batch folded into the rows, and
        operands turned, as `systolic.matmul` does it.
      operands: their shapes and dtypes.
    """

    computed: MatmulSpec
    operands: Operands
    product: Product

    @classmethod
    def of(cls, spec: MatmulSpec, chip: Chip) -> MatmulPrograms:
        """Built from the names in the spec.

        Raises:
          SpecError: an activation without a name of systolic's; an operand with a function, which a spec names and does
            not hold; or a product of a gradient.
        """
        product = _product(spec, chip)
        spec = counted(spec, product)
        arguments = _arguments(spec)
        described = spec_of(product, arguments)
        if described != spec:
            raise SpecError(f"this product cannot be built from its spec: {_difference(spec, described)}")
        folded, _ = jax.eval_shape(lambda operands: fold(product.transpose_lhs, operands), arguments)
        planned = spec_of(product, folded)
        return cls(computed=Orientation.of(planned).spec(planned), operands=arguments, product=product)

    @property
    def arguments(self) -> tuple[Operands]:
        """Shapes and dtypes of what the programs take."""
        return (self.operands,)

    def kernel(self, config: KernelConfig) -> Callable[..., Any]:
        """The Pallas kernel with this configuration."""
        backend = dataclasses.replace(self.product.backend, tiles=config)
        return functools.partial(_first, by_pallas, dataclasses.replace(self.product, backend=backend))

    def xla(self) -> Callable[..., Any]:
        """The same by XLA."""
        return functools.partial(_first, by_xla, self.product)


def _first(run: Callable[..., tuple[Any, ...]], product: Product, operands: Operands) -> Any:
    return run(product, operands)[0]


def _product(spec: MatmulSpec, chip: Chip) -> Product:
    name = spec.epilogue.activation
    if name and name not in ACTIVATIONS:
        raise SpecError(f"activation {name!r} has no program here; known are {', '.join(ACTIVATIONS)}")
    if spec.lhs_prologue is not None or spec.rhs_prologue is not None:
        raise SpecError("an operand's function is not part of a product's spec, which only names it; tune without it")
    if spec.epilogue.primal is not None or spec.epilogue.kept_sum is not None:
        raise SpecError("a product of a gradient is not built from its spec; tune the product itself")
    return Product(
        backend=Backend(implementation="pallas", chip=chip, tiles=None),
        precision=spec.precision,
        dtype_out=spec.dtype_out,
        transpose_lhs=spec.transpose_lhs,
        transpose_rhs=spec.transpose_rhs,
        functions=Functions(activation=ACTIVATIONS[name] if name else None),
        activation=name,
    )


def counted(spec: MatmulSpec, product: Product) -> MatmulSpec:
    """The spec with the operations of its epilogue as they are counted of the program, whatever it says."""
    work = epilogue_work(product, spec.operands.of_output.map(lambda _: True))
    epilogue = dataclasses.replace(spec.epilogue, op_count=work.op_count, transcendentals=work.transcendentals)
    return dataclasses.replace(spec, epilogue=epilogue)


def _arguments(spec: MatmulSpec) -> Operands:
    m, k, n = spec.m, spec.k, spec.n

    def array(matrices: int, rows: int, columns: int, dtype: str) -> jax.ShapeDtypeStruct:
        lead = (matrices,) if spec.batch > 1 else ()
        return jax.ShapeDtypeStruct((*lead, rows, columns), jnp.dtype(dtype))

    def fused(operand: FusedOperand) -> jax.ShapeDtypeStruct:
        rows, columns = m if operand.rows else 1, n if operand.columns else 1
        return array(spec.batch if operand.rows and operand.columns else 1, rows, columns, operand.dtype)

    return spec.operands.of_output.map(fused)._replace(
        lhs=array(spec.batch_lhs, *((k, m) if spec.transpose_lhs else (m, k)), spec.dtype_lhs),
        rhs=array(spec.batch_rhs, *((n, k) if spec.transpose_rhs else (k, n)), spec.dtype_rhs),
    )


def _difference(asked: MatmulSpec, made: MatmulSpec) -> str:
    names = [name for name in MatmulSpec.__dataclass_fields__ if getattr(asked, name) != getattr(made, name)]
    return "; ".join(f"{name} would be {getattr(made, name)} and not {getattr(asked, name)}" for name in names)
