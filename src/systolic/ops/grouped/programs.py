"""The programs of grouped products that are built from their specs, with sizes of groups as tiles are chosen for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.chips import Chip
from systolic.cost.grouped import typical_sizes
from systolic.op import RacedPrograms
from systolic.ops.epilogue import activation_of
from systolic.ops.grouped.api import grouped_matmul
from systolic.ops.grouped.pallas import gradient_by_pallas, product_by_pallas
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.xla import gradient_by_xla, product_by_xla
from systolic.ops.matmul.product import Backend, Implementation
from systolic.schedule import KernelConfig
from systolic.spec import GroupedGradientSpec, GroupedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPrograms:
    """What to compile for a product on a chip."""

    computed: GroupedSpec
    chip: Chip

    @property
    def arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Rows, matrices, and what is fused; the sizes of groups are in the program."""
        spec, dtype = self.computed, jnp.dtype(self.computed.dtype)
        matrix = (spec.n, spec.k) if spec.transpose_rhs else (spec.k, spec.n)
        found = [jax.ShapeDtypeStruct((spec.m, spec.k), dtype), jax.ShapeDtypeStruct((spec.groups, *matrix), dtype)]
        if spec.bias:
            found.append(jax.ShapeDtypeStruct((spec.groups, spec.n), jnp.float32))
        if spec.row_scale:
            found.append(jax.ShapeDtypeStruct((spec.m,), jnp.float32))
        return tuple(found)

    def kernel(self, config: KernelConfig) -> Callable[..., Any]:
        """The Pallas kernel with this configuration."""
        return functools.partial(_product, self.computed, self.chip, config)

    def xla(self) -> Callable[..., Any]:
        """The same by XLA."""
        return functools.partial(_product, self.computed, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPrograms:
    """What to compile for a gradient on a chip."""

    computed: GroupedGradientSpec
    chip: Chip

    @property
    def arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Rows of both operands; the sizes of groups are in the program."""
        spec, dtype = self.computed, jnp.dtype(self.computed.dtype)
        return tuple(jax.ShapeDtypeStruct((spec.m, size), dtype) for size in (spec.k, spec.n))

    def kernel(self, config: KernelConfig) -> Callable[..., Any]:
        """The Pallas kernel with this configuration."""
        return functools.partial(_gradient, self.computed, self.chip, config)

    def xla(self) -> Callable[..., Any]:
        """The same by XLA."""
        return functools.partial(_gradient, self.computed, None, None)


def raced(spec: GroupedSpec, chip: Chip, implementation: Implementation = "pallas") -> RacedPrograms:
    """What `bench` compares."""
    programs = GroupedPrograms(computed=spec, chip=chip)
    return RacedPrograms(
        spec=spec,
        arguments=programs.arguments,
        ours=functools.partial(_called, spec, chip, implementation),
        xla=programs.xla(),
    )


def gradient_raced(spec: GroupedGradientSpec, chip: Chip) -> RacedPrograms:
    """The same of a gradient."""
    programs = GradientPrograms(computed=spec, chip=chip)
    ours = functools.partial(_gradient, spec, chip, None)
    return RacedPrograms(spec=spec, arguments=programs.arguments, ours=ours, xla=programs.xla())


def _grouping(spec: GroupedSpec | GroupedGradientSpec) -> Grouping:
    return Grouping(jnp.asarray(np.array(typical_sizes(spec.groups, spec.m, spec.rows_per_group), np.int32)))


def _static(spec: GroupedSpec | GroupedGradientSpec, chip: Chip | None, config: KernelConfig | None) -> GroupedProduct:
    implementation = "xla" if chip is None else "pallas"
    return GroupedProduct(
        backend=Backend(implementation=implementation, chip=chip, tiles=config),
        precision=spec.precision,
        dtype_out=spec.dtype_out,
        rows_per_group=spec.rows_per_group,
    )


def _product(spec: GroupedSpec, chip: Chip | None, config: KernelConfig | None, *arrays: Array) -> Array:
    import dataclasses

    name, function = activation_of(spec.activation or None)
    product = dataclasses.replace(
        _static(spec, chip, config), transpose_rhs=spec.transpose_rhs, activation=name, function=function
    )
    run = product_by_xla if chip is None else product_by_pallas
    lhs, rhs, *beside = arrays
    return run(product, lhs, rhs, _grouping(spec), _fused(spec, beside))


def _fused(spec: GroupedSpec, beside: list[Array]) -> Fused:
    rest = iter(beside)
    return Fused(bias=next(rest) if spec.bias else None, row_scale=next(rest) if spec.row_scale else None)


def _called(spec: GroupedSpec, chip: Chip, implementation: Implementation, *arrays: Array) -> Array:
    lhs, rhs, *beside = arrays
    fused = _fused(spec, beside)
    return grouped_matmul(
        lhs,
        rhs,
        _grouping(spec).sizes,
        bias=fused.bias,
        activation=spec.activation or None,
        row_scale=fused.row_scale,
        transpose_rhs=spec.transpose_rhs,
        precision=spec.precision,
        preferred_element_type=spec.dtype_out,
        rows_per_group=spec.rows_per_group,
        implementation=implementation,
        chip=chip,
    )


def _gradient(
    spec: GroupedGradientSpec, chip: Chip | None, config: KernelConfig | None, lhs: Array, cotangent: Array
) -> Array:
    run = gradient_by_xla if chip is None else gradient_by_pallas
    return run(_static(spec, chip, config), spec.groups, lhs, cotangent, _grouping(spec))
