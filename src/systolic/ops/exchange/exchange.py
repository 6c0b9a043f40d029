"""Slices of rows between all devices of a mesh axis, by the Pallas kernel or by XLA, with derivatives."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.compat import varying_alike
from systolic.kernels.interpreted import tracing_for
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.collective.arguments import axis_size, barrier_number
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.linear import linear
from systolic.ops.exchange.kernel.exchange import exchanged
from systolic.ops.exchange.schedule import ExchangeSchedule, ExchangeSpec
from systolic.ops.exchange.tables import Slices, tables
from systolic.schedule.legality import LANES, IllegalTilesError, Violation
from systolic.schedule.vmem import vmem_limit
from systolic.spec import SpecError

# A kernel moves bits: rows of other dtypes of the same size travel as these.
_MOVED_AS = {2: "bfloat16", 4: "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """Linear in the rows that are sent and in the output whose rows they replace, both [rows, d]."""

    backend: Backend
    axis: str
    collective_id: int
    reads_hbm: bool

    @property
    def effects(self) -> frozenset[Any]:
        return self.backend.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        x, output = arguments
        assert x is not None  # both have a tangent if one has
        assert output is not None
        pallas, xla = (functools.partial(run, self) for run in (_by_pallas, _by_xla))

        def call(x: Array, output: Array, slices: Slices) -> Array:
            return dispatched(self.backend, pallas, xla, x, output, slices)

        return [one_at_a_time(call, x, output, Slices(*residuals))]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        slices, (x, output), (cotangent,) = Slices(*residuals), arguments, cotangents
        sent = None
        if x is not None:
            (zeros, *_) = varying_alike([jnp.zeros(x.shape, x.dtype), cotangent])
            sent = _exchanged(self, cotangent, zeros, slices.reversed(self.axis))
        if output is None:
            return [sent, None]
        begins, row = slices.recv_offsets, jnp.arange(output.shape[0])[:, None]
        is_replaced = ((row >= begins) & (row < begins + slices.recv_sizes)).any(1, keepdims=True)
        return [sent, jnp.where(is_replaced, 0, cotangent)]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _exchanged(exchange: _Exchange, x: Array, output: Array, slices: Slices) -> Array:
    return exchange.forward(slices, (x, output))[0]


@_exchanged.defjvp
def _tangent(exchange: _Exchange, primals: Any, tangents: Any) -> tuple[Array, Array]:
    out = _exchanged(exchange, *primals)
    return out, linear(exchange, primals[2], tangents[:2], (out,))[0]


def _by_xla(exchange: _Exchange, x: Array, output: Array, slices: Slices) -> Array:
    def ragged(x: Array, output: Array, slices: Slices) -> Array:
        return lax.ragged_all_to_all(x, output, *slices[:4], axis_name=exchange.axis)

    gathered = functools.partial(_by_gather, exchange.axis)
    return lax.platform_dependent(x, output, slices, cpu=gathered, default=ragged)


def _by_gather(axis: str, x: Array, output: Array, slices: Slices) -> Array:
    """Gather all rows, and take those that are for this device: XLA has no ragged all-to-all on a CPU."""
    begins, sizes = slices.recv_offsets, slices.recv_sizes
    all_rows = lax.all_gather(x, axis, tiled=True)
    sources = lax.all_to_all(slices.input_offsets, axis, 0, 0, tiled=True)
    sources += jnp.arange(sizes.size, dtype=sources.dtype) // (sizes.size // lax.axis_size(axis)) * x.shape[0]
    row = jnp.arange(output.shape[0], dtype=sources.dtype)[:, None]
    is_of = (row >= begins) & (row < begins + sizes)
    which = is_of.argmax(1)
    return jnp.where(is_of.any(1, keepdims=True), all_rows[sources[which] + row[:, 0] - begins[which]], output)


def _by_pallas(exchange: _Exchange, x: Array, output: Array, slices: Slices) -> Array:
    chip, dtype, d = exchange.backend.chip, x.dtype, x.shape[1]
    assert chip is not None  # else XLA computes it
    _require_support(exchange, x)
    x, padded_out = (_whole_tiles(rows, least) for rows, least in ((x, 2 * SUBLANES), (output, SUBLANES)))
    moved = jnp.dtype(_MOVED_AS[dtype.itemsize])
    spec = ExchangeSpec(
        devices=int(lax.axis_size(exchange.axis)),
        slices=slices.send_sizes.size,
        rows=x.shape[0],
        out_rows=padded_out.shape[0],
        d=d,
        dtype=moved.name,
    )
    schedule = ExchangeSchedule.of(spec, chip)
    with tracing_for(chip):
        out = exchanged(
            *tables(slices, schedule.tiles),
            lax.bitcast_convert_type(exchange.backend.on_tpu(x), moved),
            lax.bitcast_convert_type(padded_out, moved),
            axis_name=exchange.axis,
            collective_id=exchange.collective_id,
            reads_hbm=exchange.reads_hbm,
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
            interpret=exchange.backend.interpret,
        )
    return lax.bitcast_convert_type(out, dtype)[: output.shape[0]]


def _require_support(exchange: _Exchange, x: Array) -> None:
    violations: list[Violation] = []
    if x.dtype.itemsize not in _MOVED_AS:
        limit, fix = "the kernel moves words of 16 and 32 bits", "send bfloat16 or float32"
        violations.append(Violation(rule="dtype", value=x.dtype.name, limit=limit, fix=fix))
    if x.shape[1] % LANES:
        limit = f"the kernel moves multiples of {LANES}"
        fix = f"pad rows to {-(-x.shape[1] // LANES) * LANES}"
        violations.append(Violation(rule="columns", value=f"{x.shape[1]} elements of a row", limit=limit, fix=fix))
    if lax.axis_size(exchange.axis) == 1:
        limit, fix = "the kernel sends rows to others", "use a mesh axis of several devices"
        violations.append(Violation(rule="devices", value="one device", limit=limit, fix=fix))
    if violations:
        raise IllegalTilesError("a ragged all-to-all", violations)


def _whole_tiles(rows: Array, least: int) -> Array:
    """Pad rows, by a copy, to a multiple of eight and to at least `least`."""
    count = max(least, -(-rows.shape[0] // SUBLANES) * SUBLANES)
    return rows if count == rows.shape[0] else jnp.pad(rows, [(0, count - rows.shape[0]), (0, 0)])


def computed(
    backend: Backend,
    operand: Any,
    output: Any,
    *offsets_and_sizes: Any,
    axis_name: Any,
    collective_id: int | None = None,
    reads_hbm: bool = False,
) -> Array:
    """Check the arguments; return the output with the rows that arrive.

    With `reads_hbm` XLA keeps the operand in HBM. In VMEM, where it keeps it if it can, it is read sooner, but a kernel
    that copies row by row writes it there more slowly.
    """
    devices = axis_size(axis_name)
    x, output = jnp.asarray(operand), jnp.asarray(output)
    if not x.ndim or not output.ndim or x.shape[1:] != output.shape[1:] or x.dtype != output.dtype:
        raise SpecError(
            f"operand {x.dtype}{list(x.shape)} and output {output.dtype}{list(output.shape)}; both have to be [rows, "
            "...] of one dtype, with rows of the same shape"
        )
    named = {
        name: jnp.asarray(array)
        for name, array in zip(Slices._fields, offsets_and_sizes, strict=True)
        if array is not None  # recv_offsets
    }
    for name, array in named.items():
        if not jnp.issubdtype(array.dtype, jnp.integer) or array.ndim != 1:
            raise SpecError(f"{name} of {array.dtype}{list(array.shape)}; it has to be whole numbers, one for a slice")
    lengths = {array.size for array in named.values()}
    if len(lengths) > 1 or 0 in lengths or max(lengths) % devices:
        sizes = ", ".join(f"{name}[{array.size}]" for name, array in named.items())
        raise SpecError(f"{sizes}; all have the same number of slices, a multiple of {axis_name!r}'s {devices} devices")
    flat = [rows.reshape(rows.shape[0], math.prod(rows.shape[1:])) for rows in (x, output)]
    if "recv_offsets" not in named:
        named["recv_offsets"] = lax.all_to_all(named["output_offsets"], axis_name, 0, 0, tiled=True)
    arrays = [array.astype(jnp.int32) for array in named.values()]
    # Where JAX checks what varies over the mesh, arriving rows vary over the axis.
    *arrays, x, flat_output, _ = varying_alike([*arrays, *flat, lax.axis_index(axis_name)])
    number = barrier_number(axis_name, collective_id)
    exchange = _Exchange(backend=backend, axis=axis_name, collective_id=number, reads_hbm=reads_hbm)
    return _exchanged(exchange, x, flat_output, Slices(*arrays)).reshape(output.shape)
