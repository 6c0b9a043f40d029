"""List the rates of copies between chip and host in libtpu's scheduler, next to `systolic chips`.

    python benchmarks/host_link.py

libtpu's log of a schedule states how many cycles it expects a copy to take. Its rates are read as rates of
a chip: for v4 and v6e they are the published ones. Both devices of a v7x chip share a link. No TPU is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from systolic.chips import CHIPS, Chip

SHAPE, DTYPE = (8192, 8192), jnp.bfloat16
LOGGED = {
    "JAX_PLATFORMS": "cpu",
    "TPU_STDERR_LOG_LEVEL": "0",
    "TPU_MIN_LOG_LEVEL": "0",
    "TPU_VMODULE": "latency_hiding_scheduler=10",
}
# libtpu's clocks: with them its rates are whole numbers.
CLOCK_HZ = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "v7x": 1.9e9}
# With the default, 0.2, the schedule starts copies earlier.
LINK_AS_IT_IS: dict[str, str | bool] = {"xla_tpu_pcie_bandwidth_multiplier": "1"}
COPY = re.compile(r"Edge: copy-done\S* latency: (\S+)")


def compile_copies(topology: str) -> None:
    """Compile a copy to the host and back on each device, beside products that hide it."""
    mesh = Mesh(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices, ("devices",))
    chip = NamedSharding(mesh, PartitionSpec("devices"))

    def there_and_back(x: jax.Array, w: jax.Array) -> jax.Array:
        on_host = jax.device_put(x, chip.with_memory_kind("pinned_host"))
        return jnp.tanh(x @ w) @ w + jax.device_put(on_host, chip)

    x = jax.ShapeDtypeStruct((mesh.size * SHAPE[0], SHAPE[1]), DTYPE, sharding=chip)
    w = jax.ShapeDtypeStruct((SHAPE[1], SHAPE[1]), DTYPE, sharding=NamedSharding(mesh, PartitionSpec()))
    jax.jit(there_and_back).lower(x, w).compile(LINK_AS_IT_IS)


def scheduled_bytes_per_s(chip: Chip) -> float:
    """Return the rate of the link in libtpu's scheduler, in bytes a second."""
    command = [sys.executable, __file__, "--compile", chip.topology]
    log = subprocess.run(command, env=os.environ | LOGGED, capture_output=True, text=True).stderr
    cycles = [float(latency) for latency in COPY.findall(log)]
    if not cycles:
        raise click.ClickException(
            f"libtpu's log for {chip.name} names no copy to the host; it ends with\n{log[-2000:]}"
        )
    return SHAPE[0] * SHAPE[1] * DTYPE.dtype.itemsize / max(cycles) * CLOCK_HZ[chip.name]


@click.command(epilog="Example: python benchmarks/host_link.py")
@click.option("--compile", "topology", hidden=True)
def main(topology: str | None) -> None:
    """Compare the links to the host that libtpu's scheduler and this package reckon with."""
    if topology is not None:
        compile_copies(topology)
        return
    table = Table("chip", "libtpu, GB/s", "systolic, GB/s a device", "devices a chip")
    for name, chip in track(CHIPS.items(), "compiling", transient=True, console=Console(stderr=True)):
        table.add_row(
            name,
            f"{scheduled_bytes_per_s(chip) / 1e9:.1f}",
            f"{chip.host_bytes_per_s / 1e9:.0f}",
            str(chip.devices_per_chip),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
