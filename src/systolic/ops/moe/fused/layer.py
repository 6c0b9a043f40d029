"""A layer of experts on one device by two kernels, without sorted copies of rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.chips import Chip
from systolic.kernels.interpreted import tracing_for
from systolic.kernels.packed_rows import row_codes
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.moe.arguments import Call
from systolic.ops.moe.blocks import ExpertsSpec
from systolic.ops.moe.experts import Experts, stored
from systolic.ops.moe.fused.kernel.products import fused_products
from systolic.ops.moe.fused.kernel.sums import fused_sums
from systolic.ops.moe.fused.rules import FusedSchedules
from systolic.ops.moe.fused.schedule import FusedProductsSchedule, FusedSumsSchedule
from systolic.ops.moe.matrices import MatrixForm
from systolic.ops.moe.permuting import tokens_of_rows
from systolic.ops.moe.routing import sorted_with_values
from systolic.ops.moe.row_operands import sum_operands, table_of_experts
from systolic.schedule.legality import LANES
from systolic.schedule.vmem import vmem_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """The kernels for a layer."""

    backend: Backend
    chip: Chip
    spec: ExpertsSpec
    products: FusedProductsSchedule
    sums: FusedSumsSchedule

    @classmethod
    def of(cls, backend: Backend, chip: Chip, call: Call, experts: Experts, *, quantizes_rows: bool) -> FusedLayer:
        """Return the kernels; raise IllegalTilesError with each reason if they cannot run."""
        biases = experts.bias_gate, experts.bias_up, experts.bias_down
        count, d, f = experts.gate.shape
        first, down = jax.eval_shape(functools.partial(stored, chip), experts, call.x)
        spec = ExpertsSpec(
            devices=1,
            tokens=call.x.shape[0],
            choices=call.ids.size,
            experts=count,
            d=d,
            f=f,
            products=1 if experts.up is None else 2,
            dtype=call.x.dtype.name,
            matrices=MatrixForm.of(first),
            down=MatrixForm.of(down),
        )
        has_bias = any(bias is not None for bias in biases)
        schedules = FusedSchedules.of(spec, chip, has_bias=has_bias, quantizes_rows=quantizes_rows)
        return cls(backend=backend, chip=chip, spec=spec, products=schedules.products, sums=schedules.sums)

    def sum(self, call: Call, experts: Experts, activation: Any) -> Array:
        """Return each token's weighted sum of what its experts return, [tokens, d]."""
        spec, top_k, room = self.spec, call.ids.shape[1], self.sums.rows[0]
        with jax.named_scope("sort"):
            choices, (weights,) = sorted_with_values(call.ids, spec.experts, call.capacity, 1, call.weights)
            tokens = tokens_of_rows(choices, spec.tokens, spec.choices)
            codes = jnp.pad(row_codes(tokens, spec.d // LANES, spec.dtype), (0, self.products.rows[0]))
            table = table_of_experts(choices.sizes)
            words, factors = sum_operands(weights, choices, top_k, self.sums.registers, room)
        with jax.named_scope("experts"), tracing_for(self.chip):
            first, down = stored(self.chip, experts, call.x)
            hidden = fused_products(
                self.backend.on_tpu(call.x),
                table,
                codes,
                [first.rhs] if first.up is None else [first.rhs, first.up],
                first.scale,
                activation=activation_of(activation)[1],
                spec=spec,
                schedule=self.products,
                vmem_limit_bytes=vmem_limit(self.products.buffers, self.chip),
                interpret=self.backend.interpret,
            )
            return fused_sums(
                hidden,
                down.rhs,
                down.scale,
                table,
                words,
                factors,
                repeats=call.repeats,
                spec=spec,
                schedule=self.sums,
                vmem_limit_bytes=vmem_limit(self.sums.buffers, self.chip),
                interpret=self.backend.interpret,
            )
