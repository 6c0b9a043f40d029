"""Collectives on slices, by name, and their simulation; for tests of slices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from systolic.chips import Chip, SliceShape, chip, with_flags
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.lessons.kernels.rings import all_gather, reduce_scatter, ring_of
from systolic.simulator import SliceRun
from systolic.timing import prepare_program, target_of

ALL = "all"
BLOCK = (256, 128)  # of float32
BLOCK_BYTES = 256 * 128 * 4


def in_order(devices: Any) -> Mesh:
    return Mesh(np.array(sorted(devices, key=lambda device: device.id)), (ALL,))


def next_one(x: jax.Array) -> jax.Array:
    count = lax.axis_size(ALL)
    return lax.ppermute(x, ALL, [(device, (device + 1) % count) for device in range(count)])


def between_pairs(x: jax.Array) -> jax.Array:
    return lax.ppermute(x, ALL, [(device, device ^ 1) for device in range(lax.axis_size(ALL))])


def around(x: jax.Array) -> jax.Array:
    """A loop of a product and what is passed on."""

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(next_one(x) @ jnp.ones((128, 128))), None

    return lax.scan(layer, x, None, length=24)[0]


def layers(x: jax.Array) -> jax.Array:
    """A loop of a product whose operand is gathered, and whose results are added up and scattered."""

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        gathered = jnp.tanh(lax.all_gather(x, ALL, tiled=True) @ jnp.ones((128, 128)))
        mean = lax.pmean(gathered, ALL)
        return lax.psum_scatter(gathered - mean, ALL, tiled=True), None

    return lax.scan(layer, x, None, length=9)[0]


def two_loops(x: jax.Array) -> jax.Array:
    """Two loops of three rounds, whose collectives are of the same sizes."""

    def layer(x: jax.Array, scale: float) -> jax.Array:
        gathered = jnp.tanh(lax.all_gather(x, ALL, tiled=True) @ jnp.full((128, 128), scale))
        return lax.psum_scatter(gathered, ALL, tiled=True)

    once = lax.scan(lambda x, _: (layer(x, 1.0), None), x, None, length=3)[0]
    return lax.scan(lambda x, _: (layer(x, 2.0), None), once, None, length=3)[0]


# Some devices send, some do not, some receive: XLA looks such permutations up in a table.
SOME = [(0, 3), (1, 0), (3, 1)]


def between_some(x: jax.Array) -> jax.Array:
    return lax.ppermute(x, ALL, SOME)


FUNCTIONS = {
    "collective-permute of some": (between_some, PartitionSpec(ALL)),
    "collective-permute of pairs": (between_pairs, PartitionSpec(ALL)),
    "all-gather": (functools.partial(lax.all_gather, axis_name=ALL, tiled=True), PartitionSpec()),
    "reduce-scatter": (functools.partial(lax.psum_scatter, axis_name=ALL, tiled=True), PartitionSpec(ALL)),
    "all-reduce": (functools.partial(lax.psum, axis_name=ALL), PartitionSpec()),
    "all-to-all": (
        functools.partial(lax.all_to_all, axis_name=ALL, split_axis=0, concat_axis=0, tiled=True),
        PartitionSpec(ALL),
    ),
    "collective-permute": (next_one, PartitionSpec(ALL)),
    "collective-permute in a loop": (around, PartitionSpec(ALL)),
    "layers": (layers, PartitionSpec(ALL)),
    "two loops": (two_loops, PartitionSpec(ALL)),
}


def function_of(name: str, blocks: int) -> tuple[ShardedFunction, jax.ShapeDtypeStruct]:
    """A collective by XLA of so many blocks a device, or a ring by hand."""
    shape = jax.ShapeDtypeStruct((blocks * BLOCK[0], BLOCK[1]), jnp.float32)
    if name.startswith("ring"):
        kernel = functools.partial(all_gather if "all-gather" in name else reduce_scatter, ways=(1, -1))
        spec = PartitionSpec("ring")
        return ShardedFunction(fn=kernel, mesh=ring_of, in_specs=(spec,), out_specs=spec), shape
    fn, out = FUNCTIONS[name]
    return ShardedFunction(fn=fn, mesh=in_order, in_specs=(PartitionSpec(ALL),), out_specs=out), shape


def on_tensor_cores(chip_name: str) -> Chip:
    """Return the chip with flags that keep communication off the SparseCores of v7x."""
    work = ("all_gather", "all_reduce", "reduce_scatter") if chip_name == "v7x" else ()
    return with_flags(
        chip(chip_name), {f"xla_tpu_enable_sparse_core_collective_offload_{kind}": "false" for kind in work}
    )


def simulated(pool: WorkerPool, name: str, on: str | Chip, extents: str, **options: Any) -> SliceRun:
    return compiled(pool, name, on, extents)(**options)


def compiled(pool: WorkerPool, name: str, on: str | Chip, extents: str) -> Callable[..., SliceRun]:
    """Compile a collective; return what simulates it with options of `run_slice`.

    On a chip that is named, TensorCores communicate.
    """
    known = on_tensor_cores(on) if isinstance(on, str) else on
    shape = SliceShape.parse(known, extents)
    devices = len(shape.devices)
    fn, argument = function_of(name, devices * devices if name.endswith("reduce-scatter") else devices)
    program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    prepared = prepare_program(program, known)
    return functools.partial(prepared.run_slice, shape, program.assignment, chip=known)


def link_bytes(run: SliceRun) -> dict[tuple[int, int], int]:
    return {(link.source, link.target): link.sent_bytes for link in run.links}
