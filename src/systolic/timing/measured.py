"""Measure a function on an attached TPU by the device's clock, which the profiler reads, not the host's."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from systolic.chips import Chip
from systolic.support.call_errors import WrongCallError
from systolic.timing.measurement import Measurement
from systolic.timing.xplane_names import DEVICE_PLANE, MODULES_LINE

_WARM_UP = 2


class NoDeviceError(WrongCallError, RuntimeError):
    """No device of that kind is attached, or its profile has no times."""


def device_of(chip: Chip) -> Any:
    """Return the first attached `jax.Device` of a chip's kind; raise NoDeviceError, which names the others."""
    import jax

    devices = jax.local_devices()
    for device in devices:
        if device.device_kind == chip.device_kind:
            return device
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    raise NoDeviceError(
        f"no {chip.device_kind} is attached, only {kinds}: leave measuring out, or run this where one is"
    )


def measure(fn: Callable[..., Any], args: Sequence[Any], chip: Chip, *, repeats: int = 20) -> Measurement:
    """Compile `fn(*args)` with the flags of `chip` for the attached device, run it, and return the median time.

    Args:
      args: arrays, or `jax.ShapeDtypeStruct`s, which are filled with random numbers; or pytrees of them.
      repeats: number of timed calls, after two calls that are not timed.

    Raises:
      NoDeviceError: no such device, or the profiler has seen nothing on it.
    """
    import jax

    device = device_of(chip)
    leaves, structure = jax.tree.flatten(list(args))
    arrays = structure.unflatten(jax.device_put(_contents(leaf, number), device) for number, leaf in enumerate(leaves))
    run = jax.jit(fn).lower(*arrays).compile(compiler_options=dict(chip.compiler_flags) or None)
    for _ in range(_WARM_UP):
        jax.block_until_ready(run(*arrays))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                jax.block_until_ready(run(*arrays))
        times = [
            time
            for file in sorted(Path(folder).rglob("*.xplane.pb"))
            for time in module_times_us(jax.profiler.ProfileData.from_file(str(file)), device.id)
        ]
    if len(times) < repeats:
        raise NoDeviceError(f"the profile of {repeats} calls on {device} has {len(times)} device times")
    return Measurement(
        chip=chip.name,
        provenance="measured",
        time_us=statistics.median(times[-repeats:]),
        jax_version=jax.__version__,
        libtpu_version=metadata.version("libtpu"),
    )


def module_times_us(profile: Any, device_number: int) -> list[float]:
    """Return the duration of each program on a TPU, in the order of a `jax.profiler.ProfileData`."""
    return [
        event.duration_ns / 1e3
        for plane in profile.planes
        if plane.name == f"{DEVICE_PLANE}{device_number}"
        for line in plane.lines
        if line.name == MODULES_LINE
        for event in line.events
    ]


def _contents(leaf: Any, number: int) -> Any:
    import jax
    import jax.numpy as jnp

    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    key = jax.random.key(number)
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        info = jnp.iinfo(leaf.dtype)
        return jax.random.randint(key, leaf.shape, max(info.min, -128), min(info.max, 127), leaf.dtype)
    return jax.random.normal(key, leaf.shape, jnp.float32).astype(leaf.dtype)
