"""Whoever changes a kernel so that its programs take another time raises `KERNEL_VERSION`.

`tests/data/kernel_cycles.json` keeps the simulated cycles of some products of each pipeline under the version of the
kernels and the versions of what compiled them. To write it anew after raising the version:

    python tests/compiled/test_kernel_version.py
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import chip
from systolic.compiler import WorkerPool, versions
from systolic.kernels import KERNEL_VERSION
from systolic.schedule import KernelConfig, Tiles
from systolic.timing import submit_simulation

FILE = Path(__file__).parents[1] / "data" / "kernel_cycles.json"
BF16, INT8, F32 = jnp.bfloat16, jnp.int8, jnp.float32


def product(lhs: jax.Array, rhs: jax.Array, **keywords: Any) -> jax.Array:
    return systolic.matmul(lhs, rhs, implementation="pallas", chip="v5e", **keywords)


def fused(lhs: jax.Array, rhs: jax.Array, scale: jax.Array, bias: jax.Array, residual: jax.Array) -> jax.Array:
    def scaled(block: jax.Array, scale: jax.Array) -> jax.Array:
        return (block.astype(F32) * scale).astype(BF16)

    return product(lhs, rhs, rhs_fn=scaled, rhs_args=(scale,), bias=bias, residual=residual, activation="gelu")


def config(*tiles: int, **changes: Any) -> KernelConfig:
    tile_m, tile_k, tile_n = tiles
    cut = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return KernelConfig(tiles=cut, subtile_m=tile_m, subtile_n=tile_n, **changes)


def shapes(*each: tuple[Any, ...]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(sizes, dtype) for dtype, *sizes in each]


SQUARES = shapes((BF16, 512, 512), (BF16, 512, 512))
PRODUCTS: dict[str, tuple[Any, list[jax.ShapeDtypeStruct]]] = {
    "auto": (functools.partial(product, tiles=config(256, 256, 256)), SQUARES),
    "emit": (functools.partial(product, tiles=config(256, 256, 256, pipeline="emit", num_stages=3)), SQUARES),
    "manual": (
        functools.partial(product, tiles=config(256, 512, 256, pipeline="manual", num_stages=3, fill_chunks=2)),
        SQUARES,
    ),
    "int8, past the edges": (product, shapes((INT8, 104, 300), (INT8, 300, 200))),
    "float32, high": (functools.partial(product, precision="high"), shapes((F32, 256, 256), (F32, 256, 256))),
    "fused": (fused, shapes((BF16, 256, 256), (INT8, 256, 256), (F32, 1, 256), (BF16, 256), (BF16, 256, 256))),
}


def made_with() -> dict[str, Any]:
    found = versions()
    return {"kernel": KERNEL_VERSION, "jax": found["jax"], "libtpu": found["libtpu"]}


def simulated_cycles() -> dict[str, int]:
    with WorkerPool(max_workers=1) as pool:
        jobs = {
            name: submit_simulation(pool, fn, args, chip("v5e"), label=name) for name, (fn, args) in PRODUCTS.items()
        }
        runs = {name: job.result().run for name, job in jobs.items()}
    assert all(run is not None for run in runs.values())
    return {name: run.cycles for name, run in runs.items() if run is not None}


def test_a_change_of_the_kernels_times_raises_their_version() -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    if (kept["versions"]["jax"], kept["versions"]["libtpu"]) != (made_with()["jax"], made_with()["libtpu"]):
        pytest.skip(f"the cycles are those of {kept['versions']}; here is {made_with()}")
    same = simulated_cycles() == kept["cycles"]
    assert kept["versions"]["kernel"] == KERNEL_VERSION, f"write {FILE.name} anew"
    assert same, "the kernels' times have changed: raise KERNEL_VERSION, and write the file anew"


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    FILE.write_text(json.dumps({"versions": made_with(), "cycles": simulated_cycles()}, indent=1) + "\n")
