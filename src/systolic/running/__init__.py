"""Run a program as if on a TPU: its jitted calls are timed by the simulator, and their values computed on the CPU.

JAX has no public hook for every program that it runs, short of a PJRT plugin in C. `patches.py` replaces public names,
`jax.jit` first, while the program runs.
"""

from systolic.running.host_slice import HostSlice, ShardedCallError
from systolic.running.memory import HbmWarning, size_text
from systolic.running.recording import Recording, record
from systolic.running.results import HeldArrays, ScriptRun, TimedProgram

__all__ = [
    "HbmWarning",
    "HeldArrays",
    "HostSlice",
    "Recording",
    "ScriptRun",
    "ShardedCallError",
    "TimedProgram",
    "record",
    "size_text",
]
