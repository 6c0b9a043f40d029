"""Sharded functions over eight devices, for `sharded_functions.py` to compile and simulate."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import all_gather as jax_all_gather
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from systolic import slice_devices, slice_mesh
from systolic.chips import Chip
from systolic.lessons.kernels.rings import RING, all_gather, reduce_scatter, ring_of

TOKENS, WIDTH, HIDDEN = 1024, 2048, 4096
BLOCK = (2048, 128)  # of float32: 1 MiB
REPEATS = 16
SHARDINGS = ("-,-", "data,-", "-,model", "data,model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """One function on one slice, with its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


def topology_of_eight(chip: Chip) -> str:
    """Return a slice of eight devices."""
    if chip.links is not None and chip.links.dimensions == 2:
        return "2x4"
    return "2x2x1" if chip.devices_per_chip == 2 else "2x2x2"


def placed(mesh: Mesh, spec: P, *sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """Return a shape with its sharding."""
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))


# ---- products, by XLA alone ----


def product(x, w):
    """A product whose communication XLA derives from the shardings."""
    return x @ w


def spec_of(text: str) -> P:
    """Return the partition of an array: "data,-" cuts rows along the axis data."""
    return P(*(None if part == "-" else part for part in text.split(",")))


def products(mesh: Mesh) -> dict[str, Sharded]:
    """Return one product with every choice of the three shardings."""
    programs = {}
    for x, w, out in itertools.product(SHARDINGS, repeat=3):
        arguments = placed(mesh, spec_of(x), TOKENS, WIDTH), placed(mesh, spec_of(w), WIDTH, HIDDEN)
        fn = jax.jit(product, out_shardings=NamedSharding(mesh, spec_of(out)))
        programs[f"x[{x}] @ w[{w}] → [{out}]"] = Sharded(fn=fn, args=arguments)
    return programs


# ---- perceptrons ----


def perceptron(x, up, down):
    """Two products with a GELU between them."""
    return jax.nn.gelu(x @ up) @ down


def gathered_perceptron(x, up, down, *, whole: NamedSharding):
    """A perceptron that gathers its weights on every device before it uses them."""
    return perceptron(x, *(lax.with_sharding_constraint(weight, whole) for weight in (up, down)))


def loss(x, up, down, *, fn: Callable[..., Any]):
    """Return one number, to be differentiated."""
    return fn(x, up, down).astype(jnp.float32).sum()


def perceptrons(mesh: Mesh) -> dict[str, Sharded]:
    """Return a perceptron cut along its hidden axis, and one whose weights are gathered before they are used."""
    axes = tuple(mesh.axis_names)
    parallel = (P(None, None), P(None, axes), P(axes, None))
    gathered = (P(axes, None), P(axes, None), P(axes, None))
    sizes = ((TOKENS, WIDTH), (WIDTH, 2 * HIDDEN), (2 * HIDDEN, WIDTH))
    programs = {}
    fsdp = functools.partial(gathered_perceptron, whole=NamedSharding(mesh, P()))
    for name, specs, fn in (("tensor-parallel", parallel, perceptron), ("FSDP", gathered, fsdp)):
        arguments = tuple(
            placed(mesh, spec, *shape_and_dtype) for spec, shape_and_dtype in zip(specs, sizes, strict=True)
        )
        shardings = tuple(argument.sharding for argument in arguments)
        forward = jax.jit(fn, out_shardings=shardings[0])
        backward = jax.jit(jax.grad(functools.partial(loss, fn=fn), (0, 1, 2)), out_shardings=shardings)
        programs[f"{name} MLP, forward"] = Sharded(fn=forward, args=arguments)
        programs[f"{name} MLP, backward"] = Sharded(fn=backward, args=arguments)
    return programs


# ---- collectives and kernels ----


def manual(fn: Callable[..., Any], mesh: Mesh, spec: P, out: P | None = None) -> Callable[..., Any]:
    """Apply a function of one device's part on all devices."""
    return jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec if out is None else out, check_vma=False)


def passed_on(x, *, count: int):
    """Pass a block to the next device, again and again."""
    to_next = [(device, (device + 1) % count) for device in range(count)]
    return lax.fori_loop(0, REPEATS, lambda _, x: lax.optimization_barrier(lax.ppermute(x, RING, to_next)), x)


def right_neighbour_kernel(
    x_hbm,  # [rows, columns]
    out_hbm,  # [rows, columns]
    send_sem,
    recv_sem,
    *,
    count: int,
):
    """Copy a block to the right neighbor."""
    right = lax.rem(lax.axis_index(RING) + 1, count)
    copy = pltpu.make_async_remote_copy(x_hbm, out_hbm, send_sem, recv_sem, device_id=(right,))
    copy.start()
    copy.wait()


def right_neighbour(x, *, count: int):
    """Return the left neighbor's block."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        functools.partial(right_neighbour_kernel, count=count),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


def kernels(ring: Mesh) -> dict[str, Sharded]:
    """Return XLA's ppermute, and Pallas collectives, on a ring of neighbors."""
    count, cut = ring.size, P(RING)
    block = placed(ring, cut, count * BLOCK[0], BLOCK[1], dtype=jnp.float32)
    blocks = placed(ring, cut, count * count * BLOCK[0], BLOCK[1], dtype=jnp.float32)
    programs = {
        f"ppermute, {REPEATS} times 1 MiB": Sharded(
            fn=manual(functools.partial(passed_on, count=count), ring, cut), args=(block,)
        ),
        "right neighbour": Sharded(
            fn=manual(functools.partial(right_neighbour, count=count), ring, cut), args=(block,)
        ),
        "pallas.ops.tpu.all_gather": Sharded(
            fn=functools.partial(jax_all_gather.all_gather, mesh=ring, axis_name=RING, memory_space=pltpu.VMEM),
            args=(block,),
        ),
    }
    for ways in ((1,), (1, -1)):
        name = "one way" if len(ways) == 1 else "both ways"
        gather, scatter = (functools.partial(fn, ways=ways) for fn in (all_gather, reduce_scatter))
        programs[f"ring lesson, all-gather {name}"] = Sharded(fn=manual(gather, ring, cut), args=(block,))
        programs[f"ring lesson, reduce-scatter {name}"] = Sharded(fn=manual(scatter, ring, cut), args=(blocks,))
    return programs


def functions(chip: Chip) -> dict[str, Sharded]:
    """Return every function on the chip's slice, by name."""
    topology = topology_of_eight(chip)
    mesh, ring = slice_mesh(chip, topology, data=2, model=4), ring_mesh(chip, topology)
    return {**products(mesh), **perceptrons(mesh), **kernels(ring)}


def ring_mesh(chip: Chip, topology: str) -> Mesh:
    """Return a mesh whose devices form a ring of neighbors: the lessons' ring, or around the corners of a cube."""
    devices = slice_devices(chip, topology)
    if topology != "2x2x2":
        return ring_of(devices)
    by_id = {device.id: device for device in devices}
    # A Gray code changes one bit from one number to the next: one axis of the cube.
    return Mesh(np.array([by_id[number ^ number >> 1] for number in range(len(devices))]), (RING,))
