"""Scripts that need several devices, in a process of their own whose CPU is several: JAX counts them when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from quick_compilation import quick_flags

from systolic.compiler import WorkerPool

_QUICKLY = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def run_on_virtual_devices(script: str, tmp_path: Path, *arguments: str, devices: int = 4, cores: int = 1) -> None:
    """Runs a script on up to `devices` devices, and fails with what it wrote to standard error if it does.

    Several `cores` of a device run in threads of their own, for which this machine may have too few processors.
    """
    file = tmp_path / "script.py"
    file.write_text(f"import quick_interpretation\n{script}")
    # One more than a mesh has: interpret mode can hang on one that has all.
    flags = f"{quick_flags()} --xla_force_host_platform_device_count={devices + 1}"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, **_QUICKLY, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    if cores > 1:
        environment["NPROC"] = str(8 * devices * cores)
    command = [sys.executable, file, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@contextmanager
def quick_worker() -> Iterator[WorkerPool]:
    """Give a worker that runs kernels on virtual devices, and compiles nothing for a TPU."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**_QUICKLY, "XLA_FLAGS": quick_flags()}.items():
            patch.setenv(name, value)
        with WorkerPool(max_workers=1, time_limit_s=120) as pool:
            yield pool
