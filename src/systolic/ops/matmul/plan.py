"""Which kernel, which tiles, why, and how long by arithmetic: what `systolic.matmul` does for a product on a chip."""

from __future__ import annotations

import functools
import sys
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

from systolic.bugs import reports_bugs
from systolic.chips import CHIPS, Chip, UnsupportedDtypeError
from systolic.chips import chip as chip_named
from systolic.cost import (
    Choice,
    Kind,
    MadeWith,
    ModelledTime,
    chosen,
    configs,
    profiled_choice,
    profiled_choices,
    shipped_profiles,
    vmem_limit,
)
from systolic.ops.matmul.orientation import Orientation
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, blocked_traffic
from systolic.spec import MatmulSpec
from systolic.store import StoreError, StoreWarning, Subject, Trial, TrialStore

# Of this product, on a device or compiled and simulated; or by arithmetic, from simulated steps of its tile or a model.
Knowledge = Literal["measured", "simulated", "profiled", "modelled"]

# So near to the least time that there is, the best profiled tile is taken without asking the model: that takes a
# second. The first blocks and the last store take some microseconds of any tile, of a small product less.
_NEAR = 1.04
_ENDS_US = 4.0
_ENDS_SHARE = 0.1
# By how much the model has to promise more than a profile: so far it may be wrong, and the best of many it flatters.
_DOUBT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a product is computed on one device of a chip."""

    spec: MatmulSpec
    orientation: Orientation
    computed: MatmulSpec  # what the kernel computes: the problem, turned as `orientation` says
    chip: str
    config: KernelConfig
    time_us: float
    known: Knowledge
    modelled: ModelledTime  # what the time is made of by arithmetic, from the tile's profile where it has one
    mxu_us: float  # at the chip's peak
    hbm_us: float  # least traffic at the published bandwidth
    hbm_bytes: int  # that the kernel moves
    vmem_limit_bytes: int
    considered: int
    reason: str
    profiles: MadeWith | None = None  # what made the profile that the time comes from; None: it comes from none

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """Steps along the batch, m, n and k of what is computed."""
        return (self.computed.batch, *self.config.tiles.grid(self.computed))

    def __str__(self) -> str:
        spec = self.spec
        batch = f"{spec.batch} × " if spec.batch > 1 else ""
        dtypes = f"{spec.dtype_lhs} × {spec.dtype_rhs} → {spec.dtype_out}"
        return (
            f"{batch}{spec.m} × {spec.k} × {spec.n} (m k n), {dtypes} on {self.chip}\n"
            f"kernel   {self.config}\n"
            f"why      {self.reason}\n"
            f"time     {self.time_us:,.1f} µs {self.known}; at peak {self.mxu_us:,.1f}, "
            f"least HBM traffic {self.hbm_us:,.1f}"
        )


@reports_bugs
def plan(spec: MatmulSpec, chip: str | Chip = "v5e", *, tiles: Tiles | KernelConfig | None = None) -> Plan:
    """What `systolic.matmul` does for a product on a chip, without compiling anything.

    The winner that `systolic.tune` has found for it, if it is in your store; else the best of the tiles whose steps
    have been simulated, which takes milliseconds; else, where none of these is near the least time, or something is
    fused, the best of every legal configuration by a model, which takes up to a second. `Plan.known` says which.

    Args:
      problem: sizes, dtypes, transposes, what is fused.
      chip: a name such as "v6e" (`systolic chips` lists them), or a record of your own.
      tiles: use these; or a whole configuration, of what the kernel computes, as an earlier plan has it.

    Raises:
      UnknownChipError: no such chip.
      UnsupportedDtypeError: the chip does not multiply these dtypes; the message names what it takes.
      IllegalTilesError: `tiles` break rules; the message has every one.
      SystolicBug: this package is at fault, and not what was asked.
    """
    known = chip_named(chip) if isinstance(chip, str) else chip
    return _plan(spec, known, tiles)


@functools.lru_cache(maxsize=1024)
def _plan(spec: MatmulSpec, chip: Chip, tiles: Tiles | KernelConfig | None) -> Plan:
    if spec.dtype_multiplied not in chip.dtypes:
        raise UnsupportedDtypeError(
            f"{chip.name} has no matrix multiplication of {spec.dtype_multiplied}; it takes {', '.join(chip.dtypes)}"
        )
    orientation = Orientation.of(spec)
    computed = orientation.spec(spec)
    winner = _winner(computed, chip) if tiles is None else None
    known: Knowledge | None = None
    try:
        if winner is not None:
            choices, considered = [winner.choice], 1
            known = "measured" if winner.trial.measured_us is not None else "simulated"
        elif isinstance(tiles, KernelConfig):
            legal = chosen(computed, tiles, chip)  # raises where it is not
            choices, considered = [profiled_choice(computed, tiles, chip) or legal], 1
        elif tiles is not None:
            choices = configs(computed, chip, orientation.tiles(tiles))
            considered = len(choices)
        else:
            choices, considered = _ranked(computed, chip)
    except IllegalTilesError as error:
        raise orientation.refusal(error, of_kernel=isinstance(tiles, KernelConfig)) from None
    best = choices[0]
    time_us = winner.trial.time_us if winner is not None else None
    traffic = blocked_traffic(computed, best.config)
    known = known or best.known
    return Plan(
        spec=spec,
        orientation=orientation,
        computed=computed,
        chip=chip.name,
        config=best.config,
        time_us=time_us if time_us is not None else best.modelled.time_us,
        known=known,
        modelled=best.modelled,
        mxu_us=mxu_us(spec, chip),
        hbm_us=spec.least_hbm_bytes / chip.hbm_bytes_per_s * 1e6,
        hbm_bytes=traffic.hbm_bytes,
        vmem_limit_bytes=vmem_limit(computed, best.config, chip),
        considered=considered,
        reason=_reason(computed, orientation, best, chip, considered, known, given=tiles is not None),
        profiles=_made_with(computed, chip) if known == "profiled" else None,
    )


def _made_with(spec: MatmulSpec, chip: Chip) -> MadeWith | None:
    kind = Kind.of(spec, chip)
    profiles = shipped_profiles(kind) if kind is not None else None
    return profiles.made_with if profiles is not None else None


def _ranked(spec: MatmulSpec, chip: Chip) -> tuple[list[Choice], int]:
    """Best first, and how many were looked at: profiled tiles, and where none of these is near the model's too."""
    profiled = profiled_choices(spec, chip)
    best = profiled.choices[:1]
    near_us = profiled.least_us * _NEAR + min(_ENDS_US, profiled.least_us * _ENDS_SHARE)
    if best and best[0].modelled.time_us <= near_us:
        return profiled.choices, profiled.considered
    modelled = configs(spec, chip)
    if best and best[0].modelled.time_us * (1 - _DOUBT) <= modelled[0].modelled.time_us:
        return [*best, *modelled], len(modelled) + profiled.considered
    return modelled, len(modelled) + profiled.considered


class _Winner(NamedTuple):
    trial: Trial
    choice: Choice


def _winner(spec: MatmulSpec, chip: Chip) -> _Winner | None:
    """What `systolic tune` has found for this product; nothing where the store cannot be read, or it breaks rules."""
    if chip != CHIPS.get(chip.name):
        return None  # changed, or not registered: trials are kept, and judged, by the name of a chip
    try:
        trial = TrialStore.at().winner(Subject.here(spec, chip.name))
        if trial is None or trial.config is None:
            return None
        return _Winner(trial, chosen(spec, trial.config, chip))
    except (StoreError, IllegalTilesError) as error:
        warnings.warn(f"no winners of systolic tune: {error}", StoreWarning, stacklevel=5)
        return None


def forget_plans() -> None:
    """Plans are kept for as long as the process runs, and so are kernels: to be called when there is a new winner.

    A function that was compiled by `jax.jit` before keeps its kernels.
    """
    _plan.cache_clear()
    traced = sys.modules.get("systolic.ops.matmul.pallas")  # which needs JAX, and is not there where nothing was traced
    if traced is not None:
        traced.by_pallas.clear_cache()


def mxu_us(spec: MatmulSpec, chip: Chip) -> float:
    """Microseconds at the chip's published peak, all passes counted."""
    return spec.flops * spec.passes / chip.peak_ops_per_s(spec.dtype_multiplied) * 1e6


def _reason(
    spec: MatmulSpec,
    orientation: Orientation,
    best: Choice,
    chip: Chip,
    considered: int,
    known: Knowledge,
    *,
    given: bool,
) -> str:
    config, time = best.config, best.modelled
    first = {
        "measured": "the winner that systolic tune has measured",
        "simulated": "the winner of systolic tune",
        "profiled": f"the fastest of {considered} by profiles of their tiles",
        "modelled": f"the fastest of {considered} configurations by the model",
    }[known]
    first = "tiles as given" if given else first
    parts = [f"{first}, limited by {time.limit}"]
    parts.append(f"{time.ramp_us:.1f} µs go to the first blocks and the last store")
    over = blocked_traffic(spec, config).hbm_bytes / spec.least_hbm_bytes
    parts.append(f"HBM traffic is {over:.1f} × the least")
    if str(orientation):
        parts.append(str(orientation))
    if spec.dtype_multiplied == "float32":
        passes = {"default": "one bfloat16 pass", "high": "three bfloat16 passes", "highest": "six bfloat16 passes"}
        parts.append(f"float32 as {passes[spec.precision]}")
    if spec.dtype_multiplied in chip.emulated_dtypes:
        native = chip.emulated_dtypes[spec.dtype_multiplied]
        parts.append(f"{chip.name} multiplies {spec.dtype_multiplied} at the rate of {native}")
    if chip.cores_per_device > 1:
        parts.append("both cores share the blocks of the output")
    return "; ".join(parts)
