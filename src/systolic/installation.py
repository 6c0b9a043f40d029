"""Check which parts of systolic work on this machine: versions, compiler, devices, folders, extras."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from systolic.chips import DEFAULT_CHIP, chip
from systolic.compiler import CompilerMissing, ProgramCache, WorkerPool, check_available
from systolic.store import TrialStore
from systolic.support.extras import install_command, missing
from systolic.support.versions import versions
from systolic.timing.experiment import Experiment
from systolic.timing.runner import Runner

State = Literal["works", "absent", "broken", "not tried"]

_SIDE = 256  # of the product that is compiled and run
_TIME_LIMIT_S = 240.0
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that this machine has or lacks."""

    name: str
    state: State  # "absent" is optional and missing; "broken" should work and does not
    about: str  # the finding, in one line
    fix: str = ""  # what to do; "": nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """This machine, as systolic sees it."""

    versions: dict[str, str | None]  # of packages that results depend on; None is not installed
    platform: str
    executable: str
    parts: tuple[Part, ...]

    @property
    def ok(self) -> bool:
        return all(part.state != "broken" for part in self.parts)


def installation(*, compiles: bool = True) -> Installation:
    """Check everything. Starts no TPU, and changes only files of a damaged cache or store.

    With `compiles` a small product is compiled and run too, which takes some seconds.
    """
    return Installation(
        versions={**versions(), "numpy": version("numpy")},
        platform=f"{platform.platform()} on {platform.machine()}",
        executable=sys.executable,
        parts=(*_products(compiles), _grids(), _devices(), _cache(), _store(), *_extras()),
    )


def _products(compiles: bool) -> tuple[Part, Part]:
    """Check the compiler with the simulator, and interpret mode."""
    try:
        check_available()
        missing = ""
    except CompilerMissing as error:
        missing = str(error)
    without = "plan, roofline, interpret mode and the trial table work without it"
    absent = Part(name="compiler", state="absent", about=missing.partition(": ")[0], fix=f"{missing}; {without}")
    if not compiles:
        untried = Part(name="compiler", state="not tried", about="libtpu is installed")
        return absent if missing else untried, Part(name="interpret mode", state="not tried", about="")
    with WorkerPool(max_workers=1, time_limit_s=_TIME_LIMIT_S) as pool:
        compiler = absent if missing else _part("compiler", functools.partial(_simulated, pool))
        return compiler, _part("interpret mode", lambda: pool.submit(interpreted_product, label="a product").result())


def _part(name: str, tried: Callable[[], str]) -> Part:
    started = time.monotonic()
    try:
        about = tried()
    except Exception as error:  # noqa: BLE001 -- any failure is the answer
        lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason given"]
        fix = "see the reason; report it with this text if it says nothing to you"
        return Part(name=name, state="broken", about=f"{type(error).__name__}: {lines[0]}", fix=fix)
    return Part(name=name, state="works", about=f"{about}, in {time.monotonic() - started:.1f} s")


def _simulated(pool: WorkerPool) -> str:
    import jax
    import jax.numpy as jnp

    from systolic.ops.matmul import matmul

    fn = functools.partial(matmul, implementation="pallas", chip=DEFAULT_CHIP)
    x = jax.ShapeDtypeStruct((_SIDE, _SIDE), jnp.bfloat16)
    experiment = Experiment(fn=fn, args=[x, x], chip=chip(DEFAULT_CHIP), label="a small product", cached=False)
    time_us = Runner(pool).start(experiment).outcome().required().time_us
    return f"a product of {_SIDE}³ compiled for {DEFAULT_CHIP} and simulated: {time_us:.1f} µs"


def interpreted_product() -> str:
    """Run a small product's kernel on the CPU, in a worker; raise ArithmeticError if NumPy's product differs."""
    import numpy as np

    from systolic.ops.matmul import matmul

    random = np.random.default_rng(0)
    # Integers, whose sums are exact in float32.
    lhs, rhs = (random.integers(-7, 8, (_SIDE, _SIDE)).astype(np.float32) for _ in range(2))
    result: Any = matmul(lhs, rhs, implementation="interpret", chip=DEFAULT_CHIP)
    if not np.array_equal(np.asarray(result), lhs @ rhs):
        raise ArithmeticError(f"the kernel's product of {_SIDE}³ differs from NumPy's")
    return f"the kernel of a product of {_SIDE}³ ran on the CPU, and is right"


def _grids() -> Part:
    from systolic.compat import grid_sizes_are_cached

    if not grid_sizes_are_cached():
        return Part(name="grids of kernels", state="works", about="pl.num_programs is that of each call")
    return Part(
        name="grids of kernels",
        state="broken",
        about="this JAX keeps pl.num_programs of a kernel's first call: other grids give wrong results, on a TPU too",
        fix="use jax 0.10.2, or 0.12 and later; systolic's own ops are right, lessons and your kernels may not be",
    )


def _devices() -> Part:
    from systolic.compat import attached_tpu_chips

    chips = attached_tpu_chips()
    if chips:
        return Part(name="TPU", state="works", about=f"{chips} chips are attached; nothing was started on them")
    return Part(
        name="TPU", state="absent", about="none is attached: times are simulated", fix="systolic tpu create makes one"
    )


def _cache() -> Part:
    cache = ProgramCache()
    if not cache.file.exists():
        return _to_come("program cache", cache.file)
    fault = cache.fault()
    if fault is not None:
        return _unusable("program cache", f"{cache.file}: {fault}")
    if not os.access(cache.file, os.W_OK):
        return _unusable("program cache", f"{cache.file} cannot be written to")
    contents = f"{cache.count():,} programs, {cache.size_bytes() / _MIB:,.1f} MiB"
    return Part(name="program cache", state="works", about=f"{cache.file}, {contents}")


def _store() -> Part:
    health = TrialStore.at().health()
    if health.problem:
        return _unusable("trial store", health.problem)
    if not health.exists:
        return _to_come("trial store", health.file)
    if health.unreadable:
        count, first = len(health.unreadable), health.unreadable[0]
        return _unusable("trial store", f"{health.file}: {count} rows cannot be read, such as {first}")
    if not os.access(health.file, os.W_OK):
        return _unusable("trial store", f"{health.file} cannot be written to")
    contents = f"{health.trials:,} trials of {health.subjects:,} product{'' if health.subjects == 1 else 's'}"
    return Part(name="trial store", state="works", about=f"{health.file}, schema {health.schema}: {contents}")


def _to_come(name: str, path: Path) -> Part:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return _unusable(name, f"{path} cannot be made: nothing can be written to {folder}")
    return Part(name=name, state="works", about=f"{path} will be made when something is kept")


def _unusable(name: str, about: str) -> Part:
    variable = "SYSTOLIC_STORE" if name == "trial store" else "SYSTOLIC_CACHE_DIR"
    return Part(name=name, state="broken", about=about, fix=f"mend or remove it, or name another with {variable}")


def _extras() -> tuple[Part, ...]:
    browser = next(filter(shutil.which, _BROWSERS), "")
    return (
        _extra("plots and pages", not missing("report"), "--plot, --page and explain --out", install_command("report")),
        _extra("cluster", not missing("cluster"), "tune --scheduler", install_command("cluster")),
        _extra("browser", bool(browser), f"pages of explain: {browser}", "look at pages of explain elsewhere"),
        _extra("gcloud", shutil.which("gcloud") is not None, "systolic tpu", "https://cloud.google.com/sdk"),
    )


def _extra(name: str, is_there: bool, serves: str, fix: str) -> Part:
    if is_there:
        return Part(name=name, state="works", about=f"for {serves}")
    return Part(name=name, state="absent", about=f"for {serves.partition(':')[0]} only", fix=fix)
