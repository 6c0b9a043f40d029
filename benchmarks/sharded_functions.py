"""Functions that are sharded over eight devices: compiled and simulated on slices of v5e, v6e, v5p and v7x.

    python benchmarks/sharded_functions.py --chip v6e,v7x --only MLP --json build/sharded_functions.json

Each function gives a time, or a refusal with its reason: how long it takes on the device that ends last, how much of
that is communication that nothing hides, and what carries it: XLA's collectives by kind, its collective matmul (a loop
that multiplies what has come while the next part travels), or Pallas kernels.

    x @ w …           `jit` of a product of 1024×2048 and 2048×4096, with one of four shardings each of x, w and the
                      result over a mesh data=2, model=4: -,- whole; data,-; -,model; data,model. XLA does the rest
    tensor-parallel   a perceptron of 1024×2048×8192 whose hidden axis is cut over all devices, forward and backward
    FSDP              the same with its rows cut, and every weight gathered where it is used
    ppermute          a loop that passes 1 MiB to the next device, each time with what came in
    ring lessons      the kernels of `systolic lessons between_chips`: a block of 1 MiB a device
    right neighbour   one remote copy of 1 MiB, as in the first kernel of Pallas' pages on distributed kernels
    pallas.ops.tpu    JAX's own all-gather, which keeps everything in VMEM
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
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
from systolic.cli.options import Workers, chip_option, flag_option, output_options, worker_options
from systolic.cli.output import check_target, console, show_table, versions, write_json
from systolic.cli.progress import progress_bar
from systolic.experiments import Experiment, Outcome, Runner
from systolic.lessons.kernels.rings import RING, all_gather, reduce_scatter, ring_of
from systolic.report.columns import Column, numeric, textual
from systolic.simulator import SliceRun

TOKENS, WIDTH, HIDDEN = 1024, 2048, 4096
BLOCK = (2048, 128)  # of float32: 1 MiB
REPEATS = 16
SHARDINGS = ("-,-", "data,-", "-,model", "data,model")
MATMUL_LOOP = "collective matmul"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """One function on one slice, with its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


def topology_of_eight(chip: Chip) -> str:
    """A slice of eight devices."""
    if chip.links is not None and chip.links.dimensions == 2:
        return "2x4"
    return "2x2x1" if chip.devices_per_chip == 2 else "2x2x2"


def placed(mesh: Mesh, spec: P, *sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """A shape with its sharding."""
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))


# ---- products, by XLA alone ----


def product(x, w):
    """What XLA makes of it is what the shardings ask for."""
    return x @ w


def spec_of(text: str) -> P:
    """The partition of an array: "data,-" cuts rows along the axis data."""
    return P(*(None if part == "-" else part for part in text.split(",")))


def products(mesh: Mesh) -> dict[str, Sharded]:
    """One product with every choice of the three shardings."""
    found = {}
    for x, w, out in itertools.product(SHARDINGS, repeat=3):
        arguments = placed(mesh, spec_of(x), TOKENS, WIDTH), placed(mesh, spec_of(w), WIDTH, HIDDEN)
        fn = jax.jit(product, out_shardings=NamedSharding(mesh, spec_of(out)))
        found[f"x[{x}] @ w[{w}] → [{out}]"] = Sharded(fn=fn, args=arguments)
    return found


# ---- perceptrons ----


def perceptron(x, up, down):
    """Two products with a GELU between them."""
    return jax.nn.gelu(x @ up) @ down


def gathered_perceptron(x, up, down, *, whole: NamedSharding):
    """The same with weights that are whole on every device while they are used."""
    return perceptron(x, *(lax.with_sharding_constraint(weight, whole) for weight in (up, down)))


def loss(x, up, down, *, fn: Callable[..., Any]):
    """One number, to be differentiated."""
    return fn(x, up, down).astype(jnp.float32).sum()


def perceptrons(mesh: Mesh) -> dict[str, Sharded]:
    """A perceptron that is cut along its hidden axis, and one whose weights are gathered before they are used."""
    every = tuple(mesh.axis_names)
    parallel = (P(None, None), P(None, every), P(every, None))
    gathered = (P(every, None), P(every, None), P(every, None))
    sizes = ((TOKENS, WIDTH), (WIDTH, 2 * HIDDEN), (2 * HIDDEN, WIDTH))
    found = {}
    fsdp = functools.partial(gathered_perceptron, whole=NamedSharding(mesh, P()))
    for name, specs, fn in (("tensor-parallel", parallel, perceptron), ("FSDP", gathered, fsdp)):
        arguments = tuple(placed(mesh, spec, *each) for spec, each in zip(specs, sizes, strict=True))
        shardings = tuple(argument.sharding for argument in arguments)
        forward = jax.jit(fn, out_shardings=shardings[0])
        backward = jax.jit(jax.grad(functools.partial(loss, fn=fn), (0, 1, 2)), out_shardings=shardings)
        found[f"{name} MLP, forward"] = Sharded(fn=forward, args=arguments)
        found[f"{name} MLP, backward"] = Sharded(fn=backward, args=arguments)
    return found


# ---- collectives and kernels ----


def manual(fn: Callable[..., Any], mesh: Mesh, spec: P, out: P | None = None) -> Callable[..., Any]:
    """The function of one device's part, on all devices."""
    return jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec if out is None else out, check_vma=False)


def passed_on(x, *, count: int):
    """Passes a block to the next device, again and again."""
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
    """Copies a block to the device on the right."""
    right = lax.rem(lax.axis_index(RING) + 1, count)
    copy = pltpu.make_async_remote_copy(x_hbm, out_hbm, send_sem, recv_sem, device_id=(right,))
    copy.start()
    copy.wait()


def right_neighbour(x, *, count: int):
    """The block of the device on the left."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        functools.partial(right_neighbour_kernel, count=count),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


def kernels(ring: Mesh) -> dict[str, Sharded]:
    """XLA's ppermute, and collectives of Pallas, on a ring of neighbours."""
    count, cut = ring.size, P(RING)
    block = placed(ring, cut, count * BLOCK[0], BLOCK[1], dtype=jnp.float32)
    blocks = placed(ring, cut, count * count * BLOCK[0], BLOCK[1], dtype=jnp.float32)
    found = {
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
        found[f"ring lesson, all-gather {name}"] = Sharded(fn=manual(gather, ring, cut), args=(block,))
        found[f"ring lesson, reduce-scatter {name}"] = Sharded(fn=manual(scatter, ring, cut), args=(blocks,))
    return found


def functions(chip: Chip) -> dict[str, Sharded]:
    """Every function on the chip's slice, by name."""
    topology = topology_of_eight(chip)
    mesh, ring = slice_mesh(chip, topology, data=2, model=4), ring_mesh(chip, topology)
    return {**products(mesh), **perceptrons(mesh), **kernels(ring)}


def ring_mesh(chip: Chip, topology: str) -> Mesh:
    """The devices in a ring of neighbours: that of the lessons, and round the corners of a cube."""
    devices = slice_devices(chip, topology)
    if topology != "2x2x2":
        return ring_of(devices)
    by_id = {device.id: device for device in devices}
    # From one number to the next a Gray code changes one bit: one axis of the cube.
    return Mesh(np.array([by_id[number ^ number >> 1] for number in range(len(devices))]), (RING,))


# ---- rows ----


def record(name: str, chip: Chip, outcome: Outcome) -> dict[str, Any]:
    """One row of the result."""
    row: dict[str, Any] = {
        "chip": chip.name,
        "topology": topology_of_eight(chip),
        "function": name,
        "provenance": "simulated",
        "status": outcome.status,
        "reason": outcome.located_reason,
        "time_us": None,
    }
    run = outcome.slice_run
    if run is None:
        return row
    return {
        **row,
        "time_us": run.time_us,
        "skew_us": run.skew_us,
        "exposed_us": run.exposed_us,
        "exposed_share": run.exposed_us / run.time_us,
        "sent_bytes": run.sent_bytes,
        "used": used(run, permutes="ppermute" in name),
        "way": run.way,
        "flags": run.flags,
        "assumptions": run.assumptions,
        "compile_s": outcome.compile_s,
    }


def used(run: SliceRun, *, permutes: bool) -> dict[str, int]:
    """What carries the communication, and how many operations of each kind there are.

    Args:
      permutes: whether the function permutes by itself; else XLA does, in its collective matmul.
    """
    found: dict[str, int] = {}
    for each in run.collectives:
        kind = MATMUL_LOOP if each.kind == "collective-permute" and not permutes else each.kind
        found[kind] = found.get(kind, 0) + 1
    return found


def used_text(row: Mapping[str, Any]) -> str:
    """What carries the communication, in words."""
    return ", ".join(f"{kind} × {count}" if count > 1 else kind for kind, count in row.get("used", {}).items())


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    textual("chip", lambda row: f"{row['chip']} {row['topology']}"),
    textual("function", lambda row: row["function"]),
    textual("status", lambda row: row["status"]),
    numeric("simulated µs", lambda row: row["time_us"], ",.1f"),
    numeric("exposed", lambda row: row.get("exposed_share"), ".0%"),
    numeric("MB sent", lambda row: row["sent_bytes"] / 1e6 if "sent_bytes" in row else None, ",.1f"),
    textual("XLA used", used_text),
    textual("simulated", lambda row: row.get("way", "")),
    numeric("compile s", lambda row: row.get("compile_s"), ".1f"),
)


@click.command()
@chip_option("v5e,v6e,v5p,v7x")
@flag_option
@click.option("--only", help="Functions whose name contains this, such as --only MLP.")
@worker_options()
@output_options
def main(chips: tuple[Chip, ...], only: str | None, workers: Workers, json_file: str | None, quiet: bool) -> None:
    """Compile and simulate every function for a slice of every chip. Exit code 1: one of them has no time.

    Example: python benchmarks/sharded_functions.py --chip v6e --only MLP --json build/sharded_functions.json
    """
    check_target(json_file)
    rows: list[dict[str, Any]] = []
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        for chip in chips:
            chosen = {name: each for name, each in functions(chip).items() if only is None or only in name}
            if not chosen:
                raise click.UsageError(f"no function's name contains {only!r}")
            bar.planned(len(chosen))
            topology, runner = topology_of_eight(chip), Runner(pool, bar)
            running = {
                name: runner.start(
                    Experiment(fn=each.fn, args=each.args, chip=chip, topology=topology, label=f"{name} {chip.name}")
                )
                for name, each in chosen.items()
            }
            for name, each in running.items():
                rows.append(record(name, chip, each.outcome()))
                if json_file not in (None, "-"):  # a run that is stopped leaves what it has found
                    write_json(str(json_file), "sharded_functions", rows, summary(rows))
    if json_file == "-":
        write_json("-", "sharded_functions", rows, summary(rows))
    else:
        show(rows)
    sys.exit(1 if summary(rows)["times"] < len(rows) else 0)


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many rows there are, and how many have a time."""
    return {"rows": len(rows), "times": sum(row["time_us"] is not None for row in rows)}


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the rows, and the reasons of those without a time."""
    out = console()
    packages = ", ".join(f"{name} {text}" for name, text in versions().items() if text)
    out.print(f"{Path(sys.argv[0]).name} · {packages} · every time is simulated")
    out.print("{times} of {rows} functions have a time".format_map(summary(rows)))
    show_table(out, _COLUMNS, rows)
    for row in rows:
        if row["reason"]:
            out.print(f"{row['chip']} {row['function']}: {row['reason']}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
