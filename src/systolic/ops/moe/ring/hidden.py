"""The activated products of all devices' tokens with this device's experts, which begin while tokens travel.

The first slab of columns begins its way round the ring by copies of XLA's while choices are sorted. A kernel sends it
on while its first weights arrive, and sends the other slabs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.chips import Chip
from systolic.kernels.interpreted import tracing_for
from systolic.kernels.packed_rows import SUBLANES, row_codes
from systolic.ops.collective.arguments import axis_ring, barrier_number
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.grouped.codes import Weights
from systolic.ops.moe.blocks import ROW_TILE, ExpertsSpec
from systolic.ops.moe.experts import Experts, stored
from systolic.ops.moe.matrices import MatrixForm
from systolic.ops.moe.permuting import tokens_of_rows
from systolic.ops.moe.ring.gathering import hops_round_the_ring, of_device, round_the_ring
from systolic.ops.moe.ring.kernel.products import ring_products
from systolic.ops.moe.ring.kernel.scatter_products import scatter_products
from systolic.ops.moe.ring.products import RingProductsSchedule, ScatterProductsSchedule
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.row_operands import in_whole_registers, sum_operands, table_of_experts
from systolic.schedule.legality import LANES
from systolic.schedule.vmem import vmem_limit

# Of the first slab while experts are chosen. Source: simulated on v6e 2x4, 4,096 tokens: choosing 8 of 128 experts
# takes 13 µs, and so does a hop of 1,024 columns.
_EARLIEST_HOPS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHidden:
    """The kernel for the tokens of all devices of a mesh axis."""

    backend: Backend
    chip: Chip
    axis: str
    ring: tuple[int, ...]
    spec: ExpertsSpec
    schedule: RingProductsSchedule

    @classmethod
    def of(cls, backend: Backend, axis: Any, x: Array, choices: int, experts: Experts) -> RingHidden | None:
        """Return the kernel, or None where it cannot run: x is of this device's tokens, `choices` of all devices'."""
        chip = backend.chip
        ring = axis_ring(axis, lax.axis_size(axis)) if isinstance(axis, str) else None
        if ring is None or chip is None or chip.links is None or backend.implementation == "xla":
            return None
        if explicit_mesh([x, *jax.tree.leaves(experts)]) is not None:
            return None
        count, d, f = experts.gate.shape
        first, down = jax.eval_shape(functools.partial(stored, chip), experts, x)
        spec = ExpertsSpec(
            devices=len(ring),
            tokens=len(ring) * x.shape[0],
            choices=choices,
            experts=count,
            d=d,
            f=f,
            products=1 if experts.up is None else 2,
            dtype=x.dtype.name,
            matrices=MatrixForm.of(first),
            down=MatrixForm.of(down),
        )
        schedule = RingProductsSchedule.of(spec, chip)
        if schedule is None:
            return None
        return cls(backend=backend, chip=chip, axis=axis, ring=ring, spec=spec, schedule=schedule)

    def neighbors(self, x: Array) -> list[tuple[Array, Array]]:
        """Return the first slab of the neighbors' tokens that arrive while experts are chosen."""
        slab = lax.stop_gradient(x[:, : self.schedule.columns])
        hops = min(_EARLIEST_HOPS, self.spec.early_hops, self.spec.hops - 1)
        return hops_round_the_ring(self.axis, self.ring, slab, slab, hops)

    def hidden(
        self,
        x: Array,
        choices: Sorted,
        weights: Weights,
        activation: Any,
        arrived: list[tuple[Array, Array]],
        later: tuple[Array, ...] | None,
    ) -> tuple[Array, Sorted, tuple[Array, ...] | None]:
        """Return the activated products, the choices with the rows that they have there, and `later`.

        Args:
          weights: of gate and up, as `stored` returns them.
          arrived: `neighbors` of x.
          later: operands of what runs later, which are there before the kernel begins: while tokens travel nothing
            waits for them.
        """
        spec, schedule = self.spec, self.schedule
        tokens = tokens_of_rows(choices, spec.tokens, spec.choices)
        slab = x[:, : schedule.columns]
        hops = self.spec.early_hops
        parts, first_rows, tokens = round_the_ring(self.axis, self.ring, slab, tokens, arrived, hops)
        codes = jnp.pad(row_codes(tokens, schedule.columns // LANES, spec.dtype), (0, ROW_TILE))
        sizes, in_registers = choices.sizes, in_whole_registers(choices)
        rows = in_registers.sizes
        ends = jnp.cumsum(rows)
        table = jnp.stack([jnp.cumsum(sizes) - sizes, ends - rows, ends])
        codes, later = lax.optimization_barrier((codes, later))
        with tracing_for(self.chip):
            out = ring_products(
                self.backend.on_tpu(x),
                parts,
                first_rows // SUBLANES,
                codes,
                table,
                [weights.rhs] if weights.up is None else [weights.rhs, weights.up],
                self._slab_scales(weights),
                jnp.asarray(self.ring, jnp.int32),
                axis_name=self.axis,
                collective_id=barrier_number(self.axis),
                activation=activation_of(activation)[1],
                spec=spec,
                schedule=schedule,
                vmem_limit_bytes=vmem_limit(schedule.buffers, self.chip),
                interpret=self.backend.interpret,
            )
        return out, in_registers, later

    def _slab_scales(self, weights: Weights) -> Array | None:
        """Return the scales with those of a slab, or of several slabs that share them, together."""
        if weights.scale is None:
            return None
        products, slab_rows = self.spec.products, self.spec.matrices.scale_rows(self.schedule.columns)
        experts, _, columns = weights.scale.shape
        scale = weights.scale.reshape(experts, products, -1, slab_rows, columns)
        return jnp.moveaxis(scale, 1, 2).reshape(experts, -1, products * slab_rows, columns)

    def sum_operands(self, weights: Array, choices: Sorted) -> tuple[Array, ...] | None:
        """Return operands of the kernel that makes sums and sends them, or None where it cannot run.

        Args:
          weights: of choices in the order of experts.
        """
        schedule = self._sum_schedule
        if schedule is None:
            return None
        words, factors = sum_operands(weights, choices, self._top_k, schedule.registers, schedule.rows[0])
        experts = table_of_experts(choices.sizes)
        ring = jnp.asarray(self.ring, jnp.int32)
        table = of_device(self.axis, schedule.scatter.table(self.ring)[np.argsort(self.ring)])
        return experts, words, factors, table, ring

    @property
    def _top_k(self) -> int:
        return self.spec.choices // self.spec.tokens

    @property
    def _sum_schedule(self) -> ScatterProductsSchedule | None:
        return ScatterProductsSchedule.of(self.spec, self._top_k, self.schedule.rows, self.chip)

    def sums(self, hidden: Array, down: Weights, operands: tuple[Array, ...], *, repeats: bool) -> Array:
        """Return the sums of this device's tokens.

        Args:
          down: as `stored` returns it.
          operands: `sum_operands`.
          repeats: True if a token may have chosen an expert more than once.
        """
        schedule = self._sum_schedule
        assert schedule is not None  # else there are no operands
        with tracing_for(self.chip):
            return scatter_products(
                hidden,
                down.rhs,
                down.scale,
                *operands,
                axis_name=self.axis,
                collective_id=barrier_number(self.axis),
                repeats=repeats,
                schedule=schedule,
                vmem_limit_bytes=vmem_limit(schedule.buffers, self.chip),
                interpret=self.backend.interpret,
            )
