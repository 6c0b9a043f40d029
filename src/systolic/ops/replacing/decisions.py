"""Decisions on products in plain JAX: a kernel or XLA, and the reason."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from systolic.accuracy.time_error import RatioVerdict
from systolic.chips import Chip, UnsupportedDtypeError
from systolic.ops.engine.target import NO_CHIP
from systolic.ops.kept_trials import kept_trials
from systolic.ops.matmul.dot_general import left_to_jax, spec_of_dot_general
from systolic.ops.planner import Planner, Plans
from systolic.schedule import TilesError
from systolic.spec import MatmulSpec, SpecError

WhereUnknown = Literal["xla", "kernel"]

_ERROR: dict[RatioVerdict, str] = {
    "faster": "beyond the error",
    "slower": "beyond the error",
    "level": "within the error",
    "not known": "error not known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision on one product.

    Attributes:
      product: sizes (m k n) and dtypes, in words.
      taken: True if a kernel of systolic computes it.
      reason: why, or why not.
      spec: for the planner; None if the kernel cannot compute it, or it is inside of an operation that is left to XLA.
      chip: the chip of the decision; "" if tracing sees none.
      xla_us, ours_us: both measured or both simulated, by `systolic tune`; None: not known.
      verdict: True if ours is faster by more than the error of simulated times.
    """

    product: str
    taken: bool
    reason: str
    spec: MatmulSpec | None = None
    chip: str = ""
    xla_us: float | None = None
    ours_us: float | None = None
    verdict: RatioVerdict = "not known"

    @property
    def ratio(self) -> float | None:
        """XLA's time over ours: above 1 the kernel is faster."""
        return None if not self.xla_us or not self.ours_us else self.xla_us / self.ours_us

    @property
    def is_unknown(self) -> bool:
        """True if the kernel can compute it and XLA's time is unknown: `systolic.tune` finds it."""
        return self.spec is not None and bool(self.chip) and self.ratio is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules by which a kernel is taken."""

    least_ratio: float  # XLA's time over ours must be above it
    where_unknown: WhereUnknown  # the implementation of a product for which XLA's time is unknown
    chip: Chip | None  # the chip whose times count; None: tracing sees no TPU
    planner: Planner
    plans: Plans  # the planner's plans; a new object when its store has a new winner

    def decide(self, types: Sequence[Any], params: Mapping[str, Any]) -> Decision:
        """Decide on a `dot_general` with these types of operands and result."""
        lhs, rhs, out = types
        precision = params["precision"]
        sizes = (*lhs.shape, *rhs.shape)
        reason = left_to_jax(lhs, rhs, precision=precision, out_sharding=params["out_sharding"])
        if not all(isinstance(size, int) for size in sizes):
            reason = "its sizes are symbols"
        elif 0 in sizes:
            reason = "it is empty"
        elif out.weak_type:
            reason = "it is one of Python's numbers"
        elif self.where_unknown == "xla" and any(operand.sharding.mesh.explicit_axes for operand in (lhs, rhs)):
            reason = "it is cut over a mesh, and times are known of one device"
        if reason:
            return self.left(types, reason)
        spec = spec_of_dot_general(lhs, rhs, params["dimension_numbers"], precision=precision, dtype_out=out.dtype)
        if self.chip is None:
            return Decision(product=_words(spec), taken=False, reason=NO_CHIP, spec=spec)
        return _decided(self, spec, self.chip)

    def left(self, types: Sequence[Any], reason: str) -> Decision:
        """Return the decision on a product that is left to XLA for a reason other than time."""
        lhs, rhs, out = map(_shape, types)
        return Decision(product=f"{lhs} · {rhs} → {out}", taken=False, reason=reason)


@functools.lru_cache(maxsize=1024)
def _decided(policy: Policy, spec: MatmulSpec, chip: Chip) -> Decision:
    decide = functools.partial(Decision, product=_words(spec), spec=spec, chip=chip.name)
    try:
        policy.plans(spec, chip, None)
    except (UnsupportedDtypeError, SpecError, TilesError) as error:
        return Decision(product=_words(spec), taken=False, reason=str(error))
    stored = kept_trials(policy.planner, spec, chip)
    ratio = stored.ratio_to_xla if stored is not None else None
    if stored is None or ratio is None or stored.winner is None:
        if policy.where_unknown == "kernel":
            return decide(taken=True, reason="XLA's time is not known: as asked for")
        return decide(taken=False, reason="XLA's time is not known")
    how = "measured" if stored.winner.measured_us is not None else "simulated"
    is_faster = ratio > policy.least_ratio
    return decide(
        taken=is_faster,
        reason=f"{how}, {_ERROR[stored.verdict]}" + ("" if is_faster else f"; asked is {policy.least_ratio:g}"),
        xla_us=stored.xla_us,
        ours_us=stored.winner.time_us,
        verdict=stored.verdict,
    )


def _words(spec: MatmulSpec) -> str:
    batch = f"{spec.batch} × " if spec.batch > 1 else ""
    dtypes = (spec.dtype_lhs, spec.dtype_rhs, spec.dtype_out)
    dtypes_text = dtypes[0] if len(set(dtypes)) == 1 else "{} × {} → {}".format(*dtypes)
    turned = "".join(f", {side} transposed" for side in ("lhs", "rhs") if getattr(spec, f"transpose_{side}"))
    return f"{batch}{spec.m} × {spec.k} × {spec.n} {dtypes_text}{turned}"


def _shape(aval: Any) -> str:
    return f"{jax.numpy.dtype(aval.dtype).name}[{','.join(map(str, aval.shape))}]"
