"""Products with quantized weights of arrays whose types say how they are sharded, as on a mesh of `jax.make_mesh`.

Each device multiplies its parts. Rows and columns stay cut as they are. If k is cut, the parts' products are summed
over the devices, in float32 unless they are only cast, and the epilogue follows that sum. k is gathered if the kernel
quantizes rows, whose scale belongs to the whole row, or if a part is not a whole number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array, lax

from systolic.ops.collective.choice import RingChoice
from systolic.ops.collective.noted import noted
from systolic.ops.engine.cuts import cuts_of, on_devices, parts_of
from systolic.ops.quantized.product import Operands, QuantizedProduct, differentiated, each_weight
from systolic.ops.quantized.xla import finished

Run = Callable[[QuantizedProduct, Operands], Array]
# Over the devices that have parts of "m" or "n", or of the k that a scale in "scales" or "lhs_scales" covers.
Summed = Callable[[Array, str], Array]
Differentiate = Callable[[Operands, Array, Summed], Operands]

_LAST = ("m", "n", "k")
_SUMMED_BY_XLA = RingChoice(
    by_kernel=False,
    reason="kernels across chips take a quantized weight only in `jax.shard_map`: `systolic.matmul_reduce_scatter`",
)


def sharded_product(run: Run, mesh: Any, product: QuantizedProduct, operands: Operands) -> Array:
    """Return the product by `run`, which on each device of the mesh gets the device's parts."""
    operands = product.apart(operands)
    names, cuts = _names(mesh, product, operands)

    def compute(*parts: Any) -> Array:
        part_operands = Operands(*parts)
        if "k" not in cuts:
            return run(product, part_operands)
        part_operands = part_operands._replace(lhs=noted(part_operands.lhs, _SUMMED_BY_XLA))
        if product.is_plain(part_operands):
            return lax.psum(
                run(product, part_operands), cuts["k"]
            )  # in its own dtype, as in XLA if the sum is only cast
        totals = [
            lax.psum(run(product.plain, weight_operands), cuts["k"]) for weight_operands in each_weight(part_operands)
        ]
        return finished(product, totals, part_operands)

    return on_devices(compute, mesh, cuts, tuple(operands), tuple(names), ("m", "n"))


def sharded_cotangents(
    differentiate: Differentiate, mesh: Any, product: QuantizedProduct, operands: Operands, cotangent: Array
) -> Operands:
    """Return the cotangents of `differentiate` on each device's parts; None for operands that have none."""
    names, cuts = _names(mesh, product, operands)
    positions = [at for at, array in enumerate(differentiated(operands)) if array is not None]

    k = cuts.get("k", ())
    axes = {"m": cuts.get("m", ()), "n": cuts.get("n", ())}
    axes |= {"scales": () if "k" in names.scales else k, "lhs_scales": () if "k" in names.lhs_scales else k}

    def summed(part: Array, of: str) -> Array:
        return lax.psum(part, axes[of]) if axes[of] else part

    def compute(operands: tuple[Any, ...], cotangent: Array) -> tuple[Array, ...]:
        cotangents_in = differentiate(Operands(*operands), cotangent, summed)
        return tuple(cotangents_in[at] for at in positions)

    names_out = tuple(names[at] for at in positions)
    arrays, array_names = (tuple(operands), cotangent), (tuple(names), ("m", "n"))
    result = dict(zip(positions, on_devices(compute, mesh, cuts, arrays, array_names, names_out), strict=True))
    return Operands(*(result.get(at) for at in range(len(Operands._fields))))


def sharded_finish(mesh: Any, product: QuantizedProduct, totals: Sequence[Array], operands: Operands) -> Array:
    epilogue_operands, out_names = operands, ("m", "n")
    arrays = (tuple(totals), epilogue_operands.bias, epilogue_operands.residual, epilogue_operands.out_scale)
    names = ((out_names,) * len(totals), ("n",), out_names, ("n",))

    def compute(totals: Sequence[Array], bias: Any, residual: Any, out_scale: Any) -> Array:
        return finished(product, totals, Operands(None, None, None, bias, residual, out_scale=out_scale))

    return on_devices(compute, mesh, cuts_of(arrays, names, last=_LAST), arrays, names, ("m", "n"), differentiated=True)


def _names(mesh: Any, product: QuantizedProduct, operands: Operands) -> tuple[Operands, dict[str, tuple[str, ...]]]:
    """Return the names of the dimensions, "" for those that cannot be cut, and the axes that cut the others."""
    scales, lhs_scales = operands.scales, operands.lhs_scales
    counts = {scale.shape[at] for scale, at in ((scales, 0), (lhs_scales, 1)) if scale is not None} - {1}

    def named(k: str) -> Operands:
        weight_dims = {"values": (k, "n"), "scales": (k if scales.shape[0] > 1 else "", "n")}
        return Operands(
            lhs=("m", k),
            **weight_dims,
            **{f"up_{name}": weight_names for name, weight_names in weight_dims.items()},
            out_scale=("n",),
            bias=("n",),
            residual=("m", "n"),
            lhs_scales=("m", k if lhs_scales is not None and lhs_scales.shape[1] > 1 else ""),
        )

    cuts = cuts_of(tuple(operands), tuple(named("k")), last=_LAST)
    parts = parts_of(mesh, cuts.get("k", ()))
    if product.quantize_lhs is None and not any(count % parts for count in counts):
        return named("k"), cuts
    return named(""), cuts_of(tuple(operands), tuple(named("")), last=_LAST)
