"""Settings with which programs for the CPU compile sooner: most tests spend their time there, on arrays of no size."""

from __future__ import annotations

import os

# Of jaxlib 0.10: its emitters of fusions, and threads that share a program's functions, make compiling twice as long.
# Later versions have lost the first, and pass over the name.
QUICK_FLAGS = "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters --xla_cpu_parallel_codegen_split_count=1"


def quick_flags() -> str:
    """Return XLA_FLAGS for a process that compiles for the CPU."""
    return f"{os.environ.get('XLA_FLAGS', '')} {QUICK_FLAGS}".strip()


def compile_quickly() -> None:
    """Let this process compile with `QUICK_FLAGS`, but not those that it starts, which may compile for a TPU."""
    from jaxlib import xla_client

    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = quick_flags()
    xla_client.CompileOptions()  # XLA reads its flags once, when it first needs them
    if before is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = before
