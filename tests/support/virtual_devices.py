"""Scripts that need several devices, in a process of their own whose CPU is several: JAX counts them when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from quick_compilation import quick_flags


def run_on_virtual_devices(script: str, tmp_path: Path, *arguments: str, devices: int = 4, cores: int = 1) -> None:
    """Runs a script on up to `devices` devices, and fails with what it wrote to standard error if it does.

    Several `cores` of a device run in threads of their own, for which this machine may have too few processors.
    """
    file = tmp_path / "script.py"
    file.write_text(f"import quick_interpretation\n{script}")
    # One more than a mesh has: interpret mode can hang on one that has all.
    flags = f"{quick_flags()} --xla_force_host_platform_device_count={devices + 1}"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    quickly = {"XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": path}
    environment = {**os.environ, **quickly, "JAX_PLATFORMS": "cpu"}
    if cores > 1:
        environment["NPROC"] = str(8 * devices * cores)
    command = [sys.executable, file, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
