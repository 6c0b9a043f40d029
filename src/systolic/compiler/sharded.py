"""Functions of several devices, for the compiler and for runs on virtual devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFunction:
    """A function of whole arrays that does its work on parts of them, one on each device of a mesh.

    The mesh is made where the devices are known: `compile_function` takes the devices of the target's topology, a call
    the devices of the process.
    """

    fn: Callable[..., Any]  # of one device's parts, as for `jax.shard_map`
    # Of the devices, in the order in which they come, to the `jax.sharding.Mesh` to use.
    mesh: Callable[[Sequence[Any]], Any]
    in_specs: tuple[Any, ...]  # of each argument, how it is cut
    out_specs: Any  # of the results

    def on(self, devices: Sequence[Any]) -> Callable[..., Any]:
        """Return the function of whole arrays on these devices."""
        import jax

        # What a kernel sends to another device is not seen by the check of what varies over the mesh.
        return jax.shard_map(
            self.fn, mesh=self.mesh(devices), in_specs=self.in_specs, out_specs=self.out_specs, check_vma=False
        )

    def __call__(self, *args: Any) -> Any:
        """Its results on all devices of this process."""
        import jax

        return self.on(jax.devices())(*args)


def with_virtual_devices(count: int, task: Callable[..., Any], *args: Any) -> Any:
    """`task(*args)` in a process that has `count` CPU devices. For a worker that has used none before, or as many.

    Raises:
        RuntimeError: the process has another number of devices already.
    """
    import contextlib

    import jax

    with contextlib.suppress(RuntimeError):  # devices are there: then their number is looked at below
        jax.config.update("jax_num_cpu_devices", count)
    if len(jax.devices()) != count:
        raise RuntimeError(f"this process has {len(jax.devices())} devices, not {count}; use a new worker")
    return task(*args)
