"""Plans: the configuration of the kernel that computes a spec on a chip, the reason, and the time.

A `Planner` looks in its store for results of `systolic tune`; if there are none it uses the op's arithmetic. By default
the user's own planner is in use, with the store that `$SYSTOLIC_STORE` names: see `use`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, overload

from systolic.chips import Chip, SliceError, SliceShape, UnsupportedDtypeError, known_chip
from systolic.chips import chip as chip_named
from systolic.cost import dtype_on, roofline
from systolic.ops.op import op_of
from systolic.ops.plan import Plan, Provenance
from systolic.ops.trial_error import trial_error
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import MatmulSpec, Spec, SpecError
from systolic.store import StoreError, StoreWarning, Subject, Trial, TrialStore, store_file
from systolic.support.bugs import reports_bugs, warn_user

_FOUND: dict[Provenance, str] = {
    "measured": "the winner that systolic tune has measured",
    "simulated": "the winner of systolic tune",
    "profiled": "the fastest of {considered} by profiles of their tiles",
    "modelled": "the fastest of {considered} configurations by the model",
}


class Plans(Protocol):
    """A cache of a planner's plans, hashed by identity."""

    def __call__(self, spec: Any, chip: Chip, tiles: Tiles | KernelConfig | None, /) -> Plan: ...


class Planner:
    """Plans specs with the winners of one store, and caches its plans; several threads may use it.

    Args:
      store: the results of `systolic tune`, a `TrialStore` or its file; None: there are no winners.
    """

    def __init__(self, store: TrialStore | Path | str | None) -> None:
        self.store = TrialStore(Path(store)) if isinstance(store, (Path, str)) else store
        self.forget()

    def forget(self) -> None:
        """Drop all plans: call it when the store has a new winner.

        Functions traced from now on use the new winner. A function that `jax.jit` has already compiled keeps its
        kernels.
        """
        self._warned: set[str] = set()
        # Kernels are cached by this object (`ops.matmul.pallas`): a new one makes JAX forget them too.
        self.plans: Plans = functools.lru_cache(maxsize=1024)(self._planned)

    @reports_bugs
    def plan(self, spec: Spec, chip: str | Chip = "v5e", *, tiles: Tiles | KernelConfig | None = None) -> Plan:
        """Return the plan of `systolic.plan` with the winners of this planner's store."""
        return self.plans(_counted(spec), chip_named(chip), tiles)

    @reports_bugs  # also when `matmul` asks
    def _planned(self, spec: Spec, chip: Chip, tiles: Tiles | KernelConfig | None) -> Plan:
        check_spec(spec, chip)
        op = op_of(spec)
        computed = op.computed(spec)
        trial = self._winner(computed, chip) if tiles is None else None
        if trial is not None and trial.config is not None and trial.time_us is not None:
            best, considered = op.judge(computed, trial.config, chip), 1
            error = trial_error(trial, computed, chip)
            time_us, provenance = trial.time_us, "measured" if trial.measured_us is not None else "simulated"
        else:
            planned = op.plan(spec, chip, tiles)
            best, considered, error = planned.configs[0], planned.considered, None
            time_us, provenance = best.modelled.time_us, best.provenance
        limits = roofline(spec, chip)
        layout = op.layout(computed, best.config, chip)
        if provenance != "profiled":
            layout = dataclasses.replace(layout, profiles=None)
        how = "tiles as given" if tiles is not None else _FOUND[provenance].format(considered=considered)
        remarks = [
            f"{best.modelled.ramp_us:.1f} µs go to the first blocks and the last store",
            f"HBM traffic is {layout.hbm_bytes / spec.least_hbm_bytes:.1f} × the least",
            *op.remarks(spec, chip),
            *_remarks(spec, chip),
        ]
        return Plan(
            spec=spec,
            computed=computed,
            chip=chip.name,
            config=best.config,
            time_us=time_us,
            provenance=provenance,
            time_error=error,
            modelled=best.modelled,
            mxu_us=limits.mxu_us,
            hbm_us=limits.hbm_us,
            considered=considered,
            reason="; ".join([f"{how}, limited by {best.modelled.limit}", *remarks]),
            mesh=op.mesh(spec),
            **layout.as_arguments(),
        )

    def _winner(self, computed: Any, chip: Chip) -> Trial | None:
        """Return the winner of `systolic tune`; nothing if the store cannot be read, or the winner breaks rules."""
        if self.store is None or chip != known_chip(chip.name):
            return None  # trials are stored under the name of a chip: this one was changed, or has flags
        try:
            trial = self.store.winner(Subject.here(computed, chip.name))
            if trial is not None and trial.config is not None:
                op_of(computed).judge(computed, trial.config, chip)
        except (StoreError, IllegalTilesError) as error:
            text = f"no winners of systolic tune: {error}"
            if text not in self._warned:
                self._warned.add(text)
                warn_user(text, StoreWarning)
            return None
        return trial


def _counted(spec: Spec) -> Spec:
    """Return the spec with the counts with which a call plans it; a spec without a program keeps its own counts."""
    try:
        return op_of(spec).counted(spec)
    except SpecError:
        return spec


def check_spec(spec: Spec, chip: Chip) -> None:
    """Check that the chip multiplies these dtypes, and that its slice has the devices of the mesh.

    Raises:
      UnsupportedDtypeError: the message names the dtypes that the chip takes.
      SliceError: the chip has no such slice, or the mesh has another number of devices.
    """
    if dtype_on(spec, chip) not in chip.dtypes:
        raise UnsupportedDtypeError(
            f"{chip.name} has no matrix multiplication of {spec.dtype_multiplied}; it takes {', '.join(chip.dtypes)}"
        )
    mesh = op_of(spec).mesh(spec)
    if mesh is None:
        return
    devices, cut = len(SliceShape.parse(chip, mesh.topology).devices), math.prod(mesh.sizes.values())
    if devices != cut:
        raise SliceError(
            f"a mesh with {mesh} has {cut} devices, and a slice {mesh.topology} of {chip.name} has {devices}"
        )


def _remarks(spec: Spec, chip: Chip) -> list[str]:
    result = []
    if spec.dtype_multiplied in chip.emulated_dtypes:
        native = chip.emulated_dtypes[spec.dtype_multiplied]
        result.append(f"{chip.name} multiplies {spec.dtype_multiplied} at the rate of {native}")
    return result


class InUse:
    """A planner in use until the end of a `with` block, or for good without one."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        with _LOCK:
            _in_use.append(self)

    def __enter__(self) -> Planner:
        return self.planner

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _in_use.remove(self)


_LOCK = Lock()
_in_use: list[InUse] = []


def use(planner: Planner | None = None, *, store: TrialStore | Path | str | None = None) -> InUse:
    """Make everything that is planned or traced from now on use this planner, or a new one with this store.

    A plain call holds until the next call; a `with` block, which yields the planner, holds until it ends:

        systolic.use(store=None)                         # no winners of `systolic tune`
        with systolic.use(store="trials.sqlite") as planner: ...

    It holds for the whole process, as `jax.config.update` does, and not for one thread: JAX and data loaders may trace
    in their own threads. Blocks of two threads may end in any order; while both last, the later one counts. Worker
    processes, which compile the programs of `simulate` and `bench`, plan with the store that `$SYSTOLIC_STORE` names.

    Args:
      planner: a planner with its plans and its store. None: a new one.
      store: store of the new planner, a `TrialStore` or its file; None: there are no winners.

    Raises:
      ValueError: both are given.
    """
    if planner is not None and store is not None:
        raise ValueError("use(planner, store=…): a planner has its own store; give one of both")
    return InUse(planner if planner is not None else Planner(store))


def planner_in_use() -> Planner:
    """Return the planner of the latest `use`; else the user's own."""
    planners = tuple(_in_use)
    return planners[-1].planner if planners else _users_planner(store_file())


@functools.lru_cache(maxsize=16)
def _users_planner(file: Path) -> Planner:
    return Planner(TrialStore(file))


@overload
def plan(spec: Spec, chip: str | Chip = "v5e", *, tiles: Tiles | KernelConfig | None = None) -> Plan: ...


@overload
def plan(
    m: int,
    k: int,
    n: int,
    /,
    chip: str | Chip = "v5e",
    *,
    dtype: str = "bfloat16",
    tiles: Tiles | KernelConfig | None = None,
) -> Plan: ...


def plan(*product: Any, **options: Any) -> Plan:
    """Return the plan of an op such as `systolic.matmul` for a spec on a chip, without compiling anything.

    It is the winner of `systolic.tune` if the store in use has one (see `systolic.use`); else the best of the tiles
    whose steps have been simulated, which takes milliseconds; else, if none of these is near the least time, or
    something is fused, the best of every legal configuration by a model, which takes up to a second. `Plan.provenance`
    names the source. JAX counts the operations of fused functions, as in a call, so only their plans import it.

    Args:
      product: a spec: sizes, dtypes, transposes, fused operations. Or three numbers m, k, n: lhs [m, k] @ rhs [k, n].
      chip: a name such as "v6e" (`systolic chips` lists them), or your own `Chip` record.
      dtype: of both operands, with three numbers; "bfloat16" if not given.
      tiles: tiles to use; or a whole configuration of the kernel's product, as in an earlier plan.

    Raises:
      UnknownChipError: no such chip.
      UnsupportedDtypeError: the chip does not multiply these dtypes; the message names the dtypes that it takes.
      IllegalTilesError: `tiles` break rules; the message has every one.
      SystolicBug: an error of this package, not of the request.
    """
    if product and isinstance(product[0], int):
        product = (MatmulSpec.of(*product[:3], dtype=options.pop("dtype", "bfloat16")), *product[3:])
    return planner_in_use().plan(*product, **options)
